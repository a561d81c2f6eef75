// Whole numbers as grids.py packs them: `wide` digits of base 64 each.
const digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+-";
function unpack({ wide, values }, index) {
  const own = [...values.slice(index * wide, (index + 1) * wide)];
  return own.reduce((found, digit) => found * 64 + digits.indexOf(digit), 0);
}
