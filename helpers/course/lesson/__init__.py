"""What serves the learner: a machine that is ready, copies of the lessons, the start page, what is passed."""
