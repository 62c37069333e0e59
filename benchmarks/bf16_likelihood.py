"""Do products in half precision cost likelihood? The same RBM trained with f32 and with bf16 products, judged by AIS.

    GIBBSIAN_DATA=folder python benchmarks/bf16_likelihood.py --save benchmarks/results/bf16_likelihood.json

784×500 on binarized MNIST, centered PCD-1, batch 100; both machines are judged in full precision, on the same test digits.
"""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from mnist_rbm import read

import gibbsian as gb
from gibbsian import kernels, models, objectives, partition


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=12_000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--betas", type=int, default=5000)
    parser.add_argument("--chains", type=int, default=200)
    parser.add_argument("--save")
    options = parser.parse_args()
    train, test = read("train"), read("test")
    results = []
    for seed in range(options.seeds):
        row: dict = {"seed": seed, "updates": options.updates}
        for products in ("full", "bf16"):
            rbm = models.RBM(784, 500, products=products)
            rbm.initialize_visible_bias(train)
            objective = objectives.Centered(objectives.PersistentContrastiveDivergence(kernels.Gibbs()))
            begun = time.process_time()
            gb.fit(
                rbm,
                objective,
                train,
                steps=options.updates,
                batch_size=100,
                lr=0.05,
                optimizer="sgd",
                schedule="linear",
                seed=seed,
            )
            seconds = time.process_time() - begun
            judged = models.RBM(784, 500)
            judged.load_state_dict(rbm.state_dict())
            g = gb.random.stream(seed, "evaluate")
            log_z = partition.ais(judged, data=train, chains=options.chains, betas=options.betas, generator=g)
            found = gb.log_likelihood(judged, test, log_z)
            row[products] = {
                "test": float(found.value),
                "interval": [float(found.lower), float(found.upper)],
                "ais_stderr": float(log_z.stderr),
                "cpu_seconds": round(seconds, 1),
            }
            print(seed, products, row[products], flush=True)
        error = sum(row[p]["ais_stderr"] ** 2 for p in ("full", "bf16")) ** 0.5
        row["difference"] = row["bf16"]["test"] - row["full"]["test"]
        row["error_of_log_z"] = error
        print(f"seed {seed}: bf16 less full {row['difference']:.3f} ± {error:.3f}", flush=True)
        results.append(row)
    if options.save:
        Path(options.save).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
