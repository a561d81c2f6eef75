"""The exercises: what a learner writes or guesses, and what is said to it.

`engine` judges (formulas, functions in ranks, the core of a lesson) with what `reading` finds in a function, `in_ranks` runs and `comparing`
compares; `telling` shows the verdict, `guesses` answers guesses, and a module per lesson holds its answers and the mistakes that people make.
"""
