"""`python -m gibbsian.app.live.painting NICE [MODULE ...]`: the process that makes pictures, so nice; modules are trusted ones.

It gives way to everything else (19), uses one thread and no GPU, and does so before torch is loaded, which is most of its work.
"""

import os
import sys

if __name__ == "__main__":
    os.nice(int(sys.argv[1]))
    os.environ |= {
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    answers, sys.stdout = sys.stdout, sys.stderr  # nothing else gets between the answers
    from gibbsian.app.live.pictures import serve
    from gibbsian.training.trust import trust

    trust(sys.argv[2:])
    serve(sys.stdin, answers)
