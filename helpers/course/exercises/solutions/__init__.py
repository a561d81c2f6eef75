"""The course's own answers, a module for each lesson.  The lesson's folded cells show their text.

`x_solution` is the course's answer to the exercise `x`.  The bare name `x` in a solution is what the lesson
goes on with: the learner's function where it is right, else the course's.
"""
