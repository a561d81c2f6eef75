"""Around the lessons: what is trained, what a learner writes, what is drawn, and what was recorded."""
