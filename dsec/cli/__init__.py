"""The command line: arguments in, text and exit codes out; everything else is asked of `dsec.api`.

Here belong options, the words of messages, progress bars and tables. What never happens here: a decision about keys,
stores or clusters. Modules of this package import nothing heavy at the top, so that ``dsec --help`` answers at once.
"""
