"""The live view: a local page that follows runs while they train, from the files that training writes anyway.

`follow` reads the folder of a run, a little at a time; `serve` tells browsers by server-sent events; `painting` is a process of
its own, at the lowest priority, that loads checkpoints for filters, landscapes and histograms; `page/` is what is seen. Nothing
here writes into a run, and nothing but `painting` and its `pictures` needs torch, so that the first curve is there at once.
"""
