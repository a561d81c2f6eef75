"""The command `rehearse`, which is also `python -m helpers.tools.rehearsal`: will a training fit?

`command_line` reads the options, `of_files` the files that they name.  `telling` has a few ranks rehearsed;
`verdict`, `host` and `pace` say what follows, `advising` what to change, and `answer` puts it into words.
"""
