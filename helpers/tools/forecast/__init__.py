"""The command `rehearse`, which is also `python -m helpers.tools.rehearsal`: will a training fit?

`command_line` names the options, `options` reads them, and `of_files` the files that they name.
`forecasting` has a few ranks rehearsed; `verdict`, `host` and `pace` say what follows, `advising` what to
change, and `answer` puts it into words.
"""
