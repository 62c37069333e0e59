"""The lab: experiments that move, in the browser, with no server behind them.

`page/` is plain HTML, CSS and ES modules; it works from any web server, and as one file from the disk. `serve` shows it on the
loopback address, `bundle` makes the one file.
"""
