"""`python -m gibbsian.app.live.painting [MODULE ...]`: the process that makes pictures. Modules are those that are trusted.

It gives way to everything else, uses one thread and no GPU, and does so before torch is loaded, which is most of its work.
"""

import os
import sys

if __name__ == "__main__":
    os.nice(19)
    os.environ |= {
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    answers, sys.stdout = sys.stdout, sys.stderr  # nothing else gets between the answers
    from gibbsian.app.live.pictures import serve
    from gibbsian.training.trust import trust

    trust(sys.argv[1:])
    serve(sys.stdin, answers)
