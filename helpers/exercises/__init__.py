"""The exercises: `engine` judges, and a module per lesson holds its answers and the mistakes that people make."""
