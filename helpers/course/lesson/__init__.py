"""Around the lessons: is the machine ready, and the learner's copies."""
