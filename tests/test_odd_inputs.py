"""Whatever odd thing an entry point is given, it answers with one sentence of gibbsian's own or with a right result.

Each entry stands in a table with a call that works. Its arguments are spoiled one at a time, by what they are: counts
become floats, strings and NaN, rows become arrays, doubles, vectors, sparse and meta tensors, labels become too many.
"""

import inspect
import math
import warnings

import numpy as np
import pytest
import torch

import gibbsian as gb
from gibbsian import domains, energies, kernels, metrics, models, objectives, partition, schedules
from gibbsian.errors import ArgumentError, GibbsianError, check_count
from gibbsian.training import Checkpoints, Guard, Logging

K, Obj = kernels, objectives


def g():
    return torch.Generator().manual_seed(0)


def real(n=6, d=2):
    return torch.randn(n, d, generator=g())


def bits(n=6, d=3):
    return torch.randint(2, (n, d), generator=g()).float()


def mlp():
    return energies.MLPEnergy(2, (4,))


def joint():
    return models.JointEnergy(energies.MLP(2, (4,), outputs=3), domains.Real(2))


def line():
    return energies.ConditionalEnergy(energies.PairMLP(1, 1, (4,)), domains.Real(1))


def chain():
    return energies.ChainField(torch.nn.Linear(2, 3), 4, 3)


def score_net():
    return models.NoiseConditionalScore(models.ScoreMLP(2, (8,)), domains.Real(2), torch.tensor([1.0, 0.1]))


def level_net():
    return models.NoiseConditionalEnergy(
        models.LevelEnergy(energies.MLP(3, (8,))), domains.Real(2), torch.tensor([1.0, 0.1])
    )


def latent():
    return energies.LatentEnergy(energies.MLP(2, (4,), outputs=3), energies.MLP(2, (4,)), 2, domains.Real(3))


def labels(n=6, classes=3):
    return torch.arange(n) % classes


HMC = lambda: K.HMC(0.1, 2)  # noqa: E731
QUIET = {"progress": False}

# --- calls that work: a name, what is called, its arguments -------------------------------------------

CALLS = {
    "sample": (
        gb.sample,
        lambda: {
            "energy": mlp(),
            "kernel": HMC(),
            "x0": real(),
            "steps": 4,
            "burn_in": 1,
            "thin": 2,
            "generator": g(),
            **QUIET,
        },
    ),
    "sample RBM": (
        gb.sample,
        lambda: {"energy": models.RBM(3, 2), "kernel": K.Gibbs(), "x0": bits(), "steps": 4, "generator": g(), **QUIET},
    ),
    "warm_up": (
        gb.warm_up,
        lambda: {
            "energy": mlp(),
            "kernel": HMC(),
            "x0": real(),
            "steps": 30,
            "target_acceptance": 0.8,
            "generator": g(),
            **QUIET,
        },
    ),
    "draw": (gb.draw, lambda: {"model": models.RBM(3, 2), "n": 4, "steps": 3, "start": bits(), "generator": g()}),
    "draw label": (
        gb.draw,
        lambda: {"model": models.ClassificationRBM(3, 3, 2), "n": 6, "steps": 3, "label": labels(), "generator": g()},
    ),
    "fit": (
        gb.fit,
        lambda: {
            "energy": mlp(),
            "objective": Obj.DenoisingScoreMatching(0.1),
            "data": real(),
            "steps": 2,
            "batch_size": 3,
            "lr": 0.01,
            "seed": 1,
            "ema": 0.9,
            "clip": 1.0,
            **QUIET,
        },
    ),
    "fit epochs": (
        gb.fit,
        lambda: {"energy": mlp(), "objective": Obj.DenoisingScoreMatching(0.1), "data": real(), "epochs": 1, **QUIET},
    ),
    "log_likelihood": (gb.log_likelihood, lambda: {"energy": models.RBM(3, 2), "x": bits()}),
    "log_likelihood MLP": (
        gb.log_likelihood,
        lambda: {"energy": energies.MLPEnergy(1, (4,), confine=1.0), "x": real(6, 1)},
    ),
    "evaluate": (
        gb.evaluate,
        lambda: {
            "model": models.RBM(3, 2),
            "data": bits(),
            "train": bits(),
            "samples": bits(),
            "chains": 5,
            "betas": 5,
        },
    ),
    "minimize": (
        gb.minimize,
        lambda: {"energy": energies.MLPEnergy(2, (4,), confine=1.0), "x0": real(), "steps": 3, "tolerance": 1e-3},
    ),
    "minimize RBM": (
        gb.minimize,
        lambda: {"energy": models.RBM(3, 2), "x0": bits(), "method": "beam", "width": 2, "steps": 2},
    ),
    "predict": (
        gb.predict,
        lambda: {"model": line(), "x": real(4, 1), "starts": 2, "steps": 2, "width": 2, "generator": g()},
    ),
    "predict start": (gb.predict, lambda: {"model": line(), "x": real(4, 1), "start": real(4, 1), "steps": 2}),
    "predict_interval": (
        gb.predict_interval,
        lambda: {
            "model": line(),
            "x": real(4, 1),
            "kernel": HMC(),
            "level": 0.9,
            "steps": 4,
            "burn_in": 1,
            "chains": 2,
            "start": real(4, 1),
            "generator": g(),
        },
    ),
    "denoise": (gb.denoise, lambda: {"prior": mlp(), "observation": real(), "sigma": 0.5, "strength": 0.7, "steps": 2}),
    "denoise mean": (
        gb.denoise,
        lambda: {
            "prior": mlp(),
            "observation": real(),
            "sigma": 0.5,
            "method": "mean",
            "kernel": HMC(),
            "steps": 3,
            "burn_in": 1,
            "chains": 2,
            "generator": g(),
            **QUIET,
        },
    ),
    "inpaint": (
        gb.inpaint,
        lambda: {"prior": mlp(), "observation": real(), "clamp": torch.tensor([True, False]), "steps": 2},
    ),
    "inpaint mean": (
        gb.inpaint,
        lambda: {
            "prior": mlp(),
            "observation": real(),
            "clamp": torch.tensor([True, False]),
            "method": "mean",
            "kernel": HMC(),
            "steps": 3,
            "burn_in": 1,
            "chains": 2,
            "generator": g(),
            **QUIET,
        },
    ),
    "hybrid.rejecting": (gb.hybrid.rejecting, lambda: {"model": joint(), "x": real(), "coverage": 0.5, "by": "energy"}),
    "hybrid.generate": (
        gb.hybrid.generate,
        lambda: {"model": joint(), "labels": labels(), "kernel": HMC(), "steps": 2, "pool": real(12), "generator": g()},
    ),
    "hybrid.refine": (
        gb.hybrid.refine,
        lambda: {"energy": joint(), "x": real(), "kernel": HMC(), "steps": 2, "generator": g()},
    ),
    "hybrid.classify": (
        gb.hybrid.classify,
        lambda: {"model": joint(), "x": real(), "kernel": HMC(), "steps": 2, "draws": 2, "generator": g()},
    ),
    "maximum_entropy": (
        gb.maximum_entropy,
        lambda: {
            "features": energies.Monomials(2),
            "moments": torch.tensor([0.5, 0.5]),
            "domain": domains.Binary(2),
            "slack": 0.1,
            "tolerance": 1e-6,
        },
    ),
    "as_energy": (gb.as_energy, lambda: {"source": lambda x: x.sum(1), "domain": domains.Real(2)}),
    "mixture": (gb.mixture, lambda: {"parts": [energies.Banana(), energies.Funnel()], "weights": [0.5, 0.5]}),
    # partition functions
    "exact": (partition.exact, lambda: {"energy": models.RBM(3, 2), "rows": 4, "limit": 100.0}),
    "exact_log_z": (partition.exact_log_z, lambda: {"energy": models.RBM(3, 2), "rows": 4, "limit": 100.0}),
    "exact_each": (
        partition.exact_each,
        lambda: {"machine": models.TemporalRBM(3, 2, 1).given(torch.zeros(2, 1, 3)), "rows": 4, "limit": 100.0},
    ),
    "smc": (
        partition.smc,
        lambda: {
            "energy": models.RBM(3, 2),
            "data": bits(),
            "chains": 4,
            "betas": 5,
            "islands": 2,
            "threshold": 0.5,
            "every": 2,
            "generator": g(),
            **QUIET,
        },
    ),
    "clamped_ais": (
        partition.clamped_ais,
        lambda: {
            "machine": models.BoltzmannMachine(3, hidden=2),
            "v": bits(),
            "chains": 4,
            "betas": 5,
            "generator": g(),
            **QUIET,
        },
    ),
    "ais_each": (
        partition.ais_each,
        lambda: {
            "machine": models.TemporalRBM(3, 2, 1).given(torch.zeros(2, 1, 3)),
            "chains": 4,
            "betas": 5,
            "generator": g(),
            **QUIET,
        },
    ),
    "mean_field": (
        partition.mean_field,
        lambda: {"energy": models.RBM(3, 2), "restarts": 2, "steps": 3, "tolerance": 1e-6, "generator": g()},
    ),
    "bethe": (partition.bethe, lambda: {"energy": models.RBM(3, 2), "damping": 0.5, "steps": 3, "tolerance": 1e-6}),
    "tree_reweighted": (
        partition.tree_reweighted,
        lambda: {"energy": models.RBM(3, 2), "trees": 3, "gap": 0.01, "damping": 0.5, "steps": 3, "tolerance": 1e-6},
    ),
    "perturb_and_map": (
        partition.perturb_and_map,
        lambda: {"energy": models.RBM(3, 2), "samples": 4, "rows": 8, "generator": g()},
    ),
    "quadrature": (
        partition.quadrature,
        lambda: {"energy": energies.DoubleWell(1), "points": 65, "tolerance": 1e-3, "limit": 100000.0},
    ),
    "flow_log_likelihood": (
        partition.flow_log_likelihood,
        lambda: {
            "family": score_net(),
            "x": real(),
            "data": real(),
            "probes": 1,
            "steps": 2,
            "max_steps": 4,
            "tolerance": 10.0,
            "batch_size": 4,
            "generator": g(),
        },
    ),
    "conditional_log_likelihood": (
        partition.conditional_log_likelihood,
        lambda: {"machine": models.TemporalRBM(3, 2, 1).given(torch.zeros(6, 1, 3)), "v": bits()},
    ),
    # metrics
    "mmd": (metrics.mmd, lambda: {"x": real(), "y": real(5), "bandwidth": 1.0}),
    "energy_distance": (metrics.energy_distance, lambda: {"x": real(), "y": real(5)}),
    "median_distance": (metrics.median_distance, lambda: {"x": real()}),
    "two_sample_test": (
        metrics.two_sample_test,
        lambda: {"x": real(), "y": real(5), "permutations": 9, "generator": g()},
    ),
    "sliced_wasserstein": (
        metrics.sliced_wasserstein,
        lambda: {"x": real(), "y": real(5), "projections": 3, "generator": g()},
    ),
    "kernel_stein_discrepancy": (
        metrics.kernel_stein_discrepancy,
        lambda: {"x": real(), "energy": mlp(), "bandwidth": 1.0, "beta": -0.5},
    ),
    "auroc": (metrics.auroc, lambda: {"scores": real()[:, 0], "outside": real(5)[:, 0]}),
    "fpr95": (metrics.fpr95, lambda: {"scores": real()[:, 0], "outside": real(5)[:, 0], "recall": 0.9}),
    "aupr labels": (metrics.aupr, lambda: {"scores": real()[:, 0], "labels": labels(6, 2)}),
    "ood_scores": (metrics.ood_scores, lambda: {"model": mlp(), "x": real(), "batch_size": 3}),
    "reliability_curve": (
        metrics.reliability_curve,
        lambda: {"probabilities": torch.softmax(real(6, 3), 1), "labels": labels(), "bins": 3},
    ),
    "expected_calibration_error": (
        metrics.expected_calibration_error,
        lambda: {"probabilities": torch.softmax(real(6, 3), 1), "labels": labels(), "bins": 3},
    ),
    "fit_temperature": (
        metrics.fit_temperature,
        lambda: {"log_probabilities": torch.tensor([[2.0, 0.0]] * 4), "labels": torch.tensor([0, 0, 0, 1])},
    ),
    "fid": (metrics.fid, lambda: {"real": real(), "fake": real(5), "extractor": lambda x: x, "batch_size": 3}),
    "kid": (
        metrics.kid,
        lambda: {
            "real": real(),
            "fake": real(5),
            "extractor": lambda x: x,
            "subsets": 2,
            "subset_size": 3,
            "batch_size": 3,
            "generator": g(),
        },
    ),
    "frechet_distance": (
        metrics.frechet_distance,
        lambda: {
            "mean_x": torch.zeros(2),
            "covariance_x": torch.eye(2),
            "mean_y": torch.ones(2),
            "covariance_y": torch.eye(2),
        },
    ),
    "amari_distance": (metrics.amari_distance, lambda: {"unmixing": torch.eye(2), "mixing": torch.eye(2)}),
    # schedules and data
    "linear": (schedules.linear, lambda: {"start": 1.0, "end": 0.1, "n": 3}),
    "geometric": (schedules.geometric, lambda: {"start": 1.0, "end": 0.1, "n": 3}),
    "polynomial": (schedules.polynomial, lambda: {"start": 1.0, "end": 0.1, "n": 3, "power": 2.0}),
    "sigmoid": (schedules.sigmoid, lambda: {"n": 3, "delta": 4.0}),
    "noise_ladder": (
        schedules.noise_ladder,
        lambda: {"data": real(), "last": 0.1, "first": 3.0, "steps_per_level": 5, "overlap": 0.5, "rows": 5},
    ),
    "toy": (gb.data.toy, lambda: {"name": "moons", "n": 5, "generator": g()}),
    "binarize": (gb.data.binarize, lambda: {"x": torch.rand(6, 2), "how": "threshold", "threshold": 0.5}),
    "dequantize": (gb.data.dequantize, lambda: {"x": torch.zeros(6, 2), "levels": 256, "generator": g()}),
    # methods that take rows
    "RBM.hidden_mean": (lambda x: models.RBM(3, 2).hidden_mean(x), lambda: {"x": bits()}),
    "RBM.reconstruct": (lambda x: models.RBM(3, 2).reconstruct(x), lambda: {"x": bits()}),
    "ClassificationRBM.class_log_prob": (
        lambda x: models.ClassificationRBM(3, 3, 2).class_log_prob(x),
        lambda: {"x": bits()},
    ),
    "ClassificationRBM.pair_energy": (
        lambda x, y: models.ClassificationRBM(3, 3, 2).pair_energy(x, y),
        lambda: {"x": bits(), "y": labels()},
    ),
    "JointEnergy.class_log_prob": (lambda x: joint().class_log_prob(x), lambda: {"x": real()}),
    "JointEnergy.given": (lambda x, index: joint().given(index)(x), lambda: {"x": real(), "index": labels()}),
    "DBM.infer": (lambda x: models.DBM(3, 2, 2).layer_means(x), lambda: {"x": bits()}),
    "Hopfield.store": (lambda patterns: models.Hopfield(3).store(patterns), lambda: {"patterns": 2 * bits(2) - 1}),
    "Hopfield.recall": (
        lambda cue, steps: models.Hopfield(3).recall(cue, steps=steps),
        lambda: {"cue": 2 * bits(2) - 1, "steps": 3},
    ),
    "TemporalRBM.generate": (
        lambda start, frames: models.TemporalRBM(3, 2, 1).generate(start, frames, generator=g()),
        lambda: {"start": bits(1)[None], "frames": 2},
    ),
    "TemporalRBM.predict": (
        lambda past, chains, sweeps: models.TemporalRBM(3, 2, 1).predict(
            past, chains=chains, sweeps=sweeps, generator=g()
        ),
        lambda: {"past": torch.zeros(2, 1, 3), "chains": 2, "sweeps": 2},
    ),
    "GatedRBM.given": (
        lambda condition, x: models.GatedRBM(2, 3, 2, 4).given(condition)(x),
        lambda: {"condition": real(), "x": bits()},
    ),
    "ConditionalEnergy.pair_energy": (
        lambda x, y: line().pair_energy(x, y),
        lambda: {"x": real(6, 1), "y": real(6, 1)},
    ),
    "NoiseConditionalScore.score": (lambda x: score_net().score(x), lambda: {"x": real()}),
    "Observed": (
        lambda observation, sigma, x: energies.Observed(mlp(), observation, sigma)(x),
        lambda: {"observation": real(), "sigma": 0.5, "x": real()},
    ),
    "score": (lambda x: mlp().score(x), lambda: {"x": real()}),
    "Gaussian.score": (lambda x: energies.Gaussian(torch.zeros(2), torch.eye(2)).score(x), lambda: {"x": real()}),
    "log_prob": (lambda x: energies.Banana().log_prob(x), lambda: {"x": real()}),
    "Parzen.fit": (energies.Parzen.fit, lambda: {"x": real()}),
    "ICA.whiten": (lambda x: energies.ICA(2).whiten(x), lambda: {"x": real(20)}),
    "Guard": (Guard, dict),
}

# what is made of numbers: arguments that are not numbers, numbers that are
MADE = {
    K.HMC: {"step_size": 0.1, "leapfrog_steps": 2, "jitter": 0.2, "mass": 1.0},
    K.MALA: {"step_size": 0.1, "mass": 1.0},
    K.NUTS: {"step_size": 0.1, "max_depth": 3},
    K.ChEES: {"step_size": 0.1, "trajectory": 1.0, "max_leapfrogs": 5},
    K.MCLMC: {"step_size": 0.1, "length": 1.0},
    K.MAMS: {"step_size": 0.1, "leapfrog_steps": 2, "jitter": 0.2},
    K.SGLD: {"step_size": 0.1, "batch_size": 2, "decay": 0.9, "floor": 0.1},
    K.SGHMC: {"step_size": 0.1, "batch_size": 2, "friction": 0.2, "noise": 0.1},
    K.Langevin: {"step_size": 0.1},
    K.ShortRunLangevin: {"step_size": 0.1, "noise": 0.01, "clip": 1.0, "last": 0.01, "cycle": 5},
    K.AnnealedLangevin: {"steps_per_level": 2, "step_size": 0.1},
    K.RandomWalk: {"scale": 0.1},
    K.UnderdampedLangevin: {"step_size": 0.1, "friction": 1.0},
    K.DiscreteLangevin: {"step_size": 0.1},
    Obj.ImplicitSampler: {"latent": 4, "sigma": 0.1, "steps": 2},
    Obj.FlowSampler: {"transforms": 2, "bins": 4},
    Obj.ContrastiveDivergence: {"kernel": K.Gibbs(), "steps": 1, "entropy_steps": 1, "neighbor": 3, "penalty": 0.1},
    Obj.PersistentContrastiveDivergence: {
        "kernel": K.Gibbs(),
        "steps": 1,
        "chains": 5,
        "buffer": 12,
        "reinit": 0.1,
        "classes": 3,
        "fast_decay": 0.9,
        "penalty": 0.1,
    },
    Obj.MonteCarloLikelihood: {"kernel": K.Gibbs(), "steps": 2, "chains": 5, "penalty": 0.1},
    Obj.CrossEntropy: {"smoothing": 0.1, "adversary": 0.1},
    Obj.DropoutCrossEntropy: {"inputs": 0.1, "hidden": 0.1},
    Obj.ClassificationLikelihood: {"generative": 1.0, "discriminative": 1.0, "unsupervised": 1.0, "steps": 1},
    Obj.PseudoLikelihood: {"sites": 2, "chunk": 4},
    Obj.RatioMatching: {"sites": 2, "chunk": 4},
    Obj.MinimumProbabilityFlow: {"chunk": 4},
    Obj.MixtureNoise: {"components": 2, "iterations": 3, "floor": 1e-3},
    Obj.FlowNoise: {"steps": 3, "lr": 1e-3, "batch": 4, "transforms": 2, "bins": 4},
    Obj.NoiseContrastive: {"ratio": 2},
    Obj.RankingContrastive: {"candidates": 4},
    Obj.Flips: {"rate": 0.3},
    Obj.EnergyDiscrepancy: {"t": 0.1, "negatives": 2, "stabilizer": 1.0},
    Obj.EnergyMatching: {
        "temperature": 0.1,
        "tau": 0.5,
        "sigma": 0.1,
        "weight": 1.0,
        "steps": 2,
        "step_size": 0.1,
        "flow_weight": 1.0,
        "data_share": 0.5,
        "data_time": 1.0,
        "time": 2.0,
    },
    Obj.RecoveryLikelihood: {"steps": 2, "step_size": 0.1},
    K.GradientFlow: {"step_size": 0.1, "temperature": 0.1, "tau": 0.5, "time": 1.0, "begin": 0.0},
    Obj.Heat: {"t": 0.1},
    Obj.Neighbors: {"lazy": 0.3},
    Obj.Masked: {"sites": 2},
    Obj.EnergyMargin: {"outliers": real(), "margin_in": 0.1, "margin_out": 1.0, "ratio": 1.0},
    Obj.PerturbAndMAP: {"samples": 4},
    Obj.Blurred: {"objective": Obj.PseudoLikelihood(), "sigma": 0.1},
    Obj.FirstRows: {"objective": Obj.PseudoLikelihood(), "rows": 2},
    Obj.Sparing: {"objective": Obj.PseudoLikelihood(), "names": ["weight"]},
    Obj.Shifted: {"objective": Obj.CrossEntropy(), "pixels": 2, "flip": True},
    Obj.WeightDecay: {"rate": 1e-4, "norm": 2},
    Obj.BlockSparsity: {"rate": 0.25},
    Obj.Sparsity: {"target": 0.1, "rate": 0.1},
    Obj.Centered: {"objective": Obj.ContrastiveDivergence(K.Gibbs()), "rate": 0.1},
    Obj.ImplicitScoreMatching: {"trace": "hutchinson", "probes": 2, "chunk": 3},
    Obj.SlicedScoreMatching: {"projections": 2},
    Obj.DenoisingScoreMatching: {"sigma": 0.1},
    Obj.MultiScaleDenoising: {"power": 2.0},
    Obj.VariationalLikelihood: {"iterations": 2, "steps": 2, "chains": 4, "centering": 0.1},
    Obj.UpDown: {"steps": 2},
    Obj.LatentLikelihood: {
        "prior": K.Langevin(0.1),
        "posterior": K.Langevin(0.1),
        "prior_steps": 2,
        "posterior_steps": 2,
    },
    models.RBM: {"visible": 3, "hidden": 2},
    models.BoltzmannMachine: {"n": 3, "hidden": 2},
    models.Hopfield: {"n": 3},
    models.Potts: {"sites": 3, "states": 3},
    models.Ising: {"shape": 3, "coupling": 1.0, "field": 0.1},
    models.ClassificationRBM: {"visible": 3, "classes": 3, "hidden": 2},
    models.SubspaceRBM: {"visible": 3, "gates": 2, "subspace": 2},
    models.SpikeSlabRBM: {"visible": 3, "hidden": 2, "precision": 1.0},
    models.TemporalRBM: {"visible": 3, "hidden": 2, "order": 1},
    models.GatedRBM: {"inputs": 2, "visible": 3, "hidden": 2, "factors": 4, "scale": 0.1},
    models.ScoreMLP: {"inputs": 2, "center": 0.0, "spread": 1.0, "features": 4},
    energies.Banana: {"dim": 2, "curvature": 0.5, "scale": 2.0},
    energies.Funnel: {"dim": 2, "scale": 3.0},
    energies.DoubleWellParticles: {"particles": 3, "dim": 2, "quartic": 0.5, "quadratic": 1.0, "distance": 2.0},
    energies.LennardJones: {"particles": 3, "dim": 2, "strength": 1.0, "trap": 1.0},
    energies.DoubleWell: {"dim": 2, "barrier": 2.0, "distance": 1.0},
    energies.Ring: {"dim": 2, "radius": 2.0, "width": 0.3},
    energies.ICA: {"dim": 2},
    energies.ProductOfExperts: {"dim": 2, "experts": 2, "alpha": 2.0},
    energies.FieldOfExperts: {"shape": (6, 6), "filters": 2, "size": 3, "alpha": 0.5, "confine": 0.1, "scale": 1.0},
    energies.MLPEnergy: {"domain": domains.Real(2), "confine": 0.1},
    energies.MLP: {"inputs": 2, "outputs": 1},
    energies.PairMLP: {"inputs": 2, "outputs": 1},
    energies.Monomials: {"size": 2, "degree": 2},
    energies.StudentT: {"mean": torch.zeros(2), "df": 3.0},
    energies.Gaussian: {"mean": torch.zeros(2), "covariance": torch.eye(2)},
    energies.ChainField: {"emission": torch.nn.Linear(2, 3), "length": 4, "classes": 3},
    energies.LabelField: {"net": torch.nn.Linear(2, 3), "labels": 3},
    energies.Parzen: {"points": real(), "bandwidth": 0.1},
    energies.WindowProduct: {"columns": 2, "windows": 5, "column_windows": 5, "marginal_weight": 0.5},
    domains.Real: {"shape": 2},
    domains.Box: {"shape": 2, "low": 0.0, "high": 1.0},
    domains.Categorical: {"shape": 2, "classes": 3},
    domains.Counts: {"words": 3, "total": 4},
    gb.units.Bernoulli: {"n": 3},
    gb.units.Softmax: {"n": 3, "classes": 3},
    gb.units.Count: {"n": 3, "total": 3},
    gb.units.Gaussian: {"n": 3, "sigma": 1.0},
    Guard: {"every": 3, "snapshots": 2, "tries": 3, "explosion": 1000.0, "lr_factor": 0.5, "penalty": 0.1},
    Checkpoints: {"every": 5, "keep_last": 2},
    Logging: {"every": 5, "validate_every": 5},
}

# rows of every kind of model
MODELS = {
    "RBM": (lambda: models.RBM(3, 2), bits),
    "Gaussian RBM": (lambda: models.RBM(gb.units.Gaussian(3), 2), lambda: real(6, 3)),
    "BoltzmannMachine": (lambda: models.BoltzmannMachine(3, hidden=2), bits),
    "Ising": (lambda: models.Ising((3, 3)), lambda: 2 * bits(6, 9).reshape(6, 3, 3) - 1),
    "DBM": (lambda: models.DBM(3, 2, 2), bits),
    "DBN": (lambda: models.DBN(3, 2, 2), bits),
    "ClassificationRBM": (lambda: models.ClassificationRBM(3, 3, 2), bits),
    "SubspaceRBM": (lambda: models.SubspaceRBM(3, 2, 2), bits),
    "SpikeSlabRBM": (lambda: models.SpikeSlabRBM(3, 2), lambda: real(6, 3)),
    "JointEnergy": (joint, real),
    "LevelEnergy": (level_net, real),
    "MLPEnergy": (mlp, real),
    "ConvEnergy": (lambda: energies.ConvEnergy((1, 8, 8), (4,)), lambda: torch.rand(2, 1, 8, 8)),
    "RecurrentEnergy": (lambda: energies.RecurrentEnergy((4, 2), 4), lambda: torch.rand(3, 4, 2)),
    "AttentionEnergy": (lambda: energies.AttentionEnergy((4, 2), 4, 2, 1), lambda: torch.rand(3, 4, 2)),
    "Gaussian": (lambda: energies.Gaussian(torch.zeros(2), torch.eye(2)), real),
    "GaussianMixture": (lambda: energies.GaussianMixture(torch.zeros(2, 2), torch.eye(2)), real),
    "StudentT": (lambda: energies.StudentT(3.0, torch.zeros(2), torch.eye(2)), real),
    "Banana": (energies.Banana, real),
    "Ring": (energies.Ring, real),
    "ICA": (lambda: energies.ICA(2), real),
    "ProductOfExperts": (lambda: energies.ProductOfExperts(2, 2), real),
    "ExponentialFamily": (lambda: energies.ExponentialFamily(energies.Monomials(2), domains.Real(2)), real),
    "Grid": (lambda: energies.Grid(torch.zeros(2, 2)), lambda: domains.Categorical(2, 2).sample(6, generator=g())),
    "Parzen": (lambda: energies.Parzen(real(), 0.3), real),
    "ColumnSplines": (lambda: energies.MarginalParzen(real(), 0.3).tabulated(), real),
    "LatentEnergy": (latent, real),
    "sum": (lambda: mlp() + mlp(), real),
    "tempered": (lambda: mlp().tempered(0.5), real),
    "mixture": (lambda: gb.mixture([energies.Banana(), energies.Funnel()], [0.5, 0.5]), real),
    "as_energy": (lambda: gb.as_energy(lambda x: x.square().sum(1), domains.Real(2)), real),
    "given": (lambda: line().given(real(6, 1)), lambda: real(6, 1)),
    "TemporalRBM given": (lambda: models.TemporalRBM(3, 2, 1).given(torch.zeros(6, 1, 3)), bits),
}

# --- how arguments are spoiled ----------------------------------------------------------------------------


def odd_counts(value):
    return {"float": float(value), "half": 2.5, "string": str(value), "nan": math.nan, "list": [value], "none": None,
            "float tensor": torch.tensor(1.5), "negative": -3, "infinite": math.inf, "truth": True}  # fmt: skip


def odd_numbers(value):
    return {"string": str(value), "nan": math.nan, "list of strings": ["a"], "none": None, "words": object()}


def odd_rows(x):
    return {
        "numpy": x.numpy(), "list": x.tolist(), "double": x.double(), "vector": x[0], "wide": torch.cat([x, x], -1),
        "deep": x[None], "sparse": x.to_sparse(), "meta": x.to("meta"), "complex": x + 0j, "none": None, "string": "rows",
        "empty": x[:0], "nan": torch.where(torch.ones_like(x) > 0, math.nan, x), "scalar": torch.tensor(1.0), "half": x.half(),
    }  # fmt: skip


def odd_labels(y):
    return {
        "numpy": y.numpy(), "list": y.tolist(), "short": y[:-1], "long": torch.cat([y, y]), "float": y.float(), "negative": y - 9,
        "large": y + 99, "square": y[:, None], "meta": y.to("meta"), "none": None, "string": "labels", "empty": y[:0],
    }  # fmt: skip


def oddities(value):
    if isinstance(value, bool):
        return {}
    if isinstance(value, int):
        return odd_counts(value)
    if isinstance(value, float):
        return odd_numbers(value)
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return odd_rows(value)
    if isinstance(value, torch.Tensor) and value.dtype == torch.long:
        return odd_labels(value)
    return {}


EVERY = CALLS | {kind.__name__ + "(...)": (kind, lambda kind=kind: dict(MADE[kind])) for kind in MADE}
EVERY |= {
    name + " at x": (lambda x, make=make: make()(x), lambda rows=rows: {"x": rows()})
    for name, (make, rows) in MODELS.items()
}
# entries that meet rows with a model: of these nothing odd may pass
STRICT = {
    "sample", "sample RBM", "warm_up", "draw", "log_likelihood", "log_likelihood MLP", "minimize", "predict start",
    "predict_interval", "denoise", "denoise mean", "inpaint", "inpaint mean", "hybrid.refine", "hybrid.classify", "smc",
    "clamped_ais", "conditional_log_likelihood", "ood_scores", "kernel_stein_discrepancy", "Hopfield.recall", "ICA.whiten",
}  # fmt: skip
# what is no mistake: a seed may be negative, shapes may be lists
FINE = {
    ("fit", "seed", "negative"), ("pretrain", "seed", "negative"), ("smc", "betas", "none"),
    *((name, "shape", "list") for name in ("Ising(...)", "Real(...)", "Box(...)", "Categorical(...)")),
    ("DoubleWell(...)", "dim", "list"), ("Ring(...)", "dim", "list"), ("Counts(...)", "words", "list"),
}  # fmt: skip


def outcome(function, arguments):
    """None where it was accepted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            function(**arguments)
        except GibbsianError:
            return "refused"
        except Exception as error:  # whatever else there is
            return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("name", EVERY)
def test_odd_arguments_meet_a_sentence(name):
    function, make = EVERY[name]
    defaults = {key: parameter.default for key, parameter in inspect.signature(function).parameters.items()}
    assert outcome(function, make()) is None
    wrong = []
    for key, value in make().items():
        numbers = isinstance(value, int | float)
        for how, odd in oddities(value).items():
            if odd is None and defaults.get(key, 0) is None:
                continue
            found = outcome(function, make() | {key: odd})
            passes = found is None and (name, key, how) not in FINE and (numbers or name in STRICT)
            if passes or found not in (None, "refused"):
                wrong.append((key, how, found))
    assert not wrong


@pytest.mark.parametrize("name", [name for name in EVERY if " at x" not in name])
def test_whole_scalars_of_numpy_and_torch_are_counts(name):
    function, make = EVERY[name]
    for key, value in make().items():
        if isinstance(value, int) and not isinstance(value, bool):
            for scalar in (np.int64(value), torch.tensor(value)):
                assert outcome(function, make() | {key: scalar}) is None, (key, scalar)


# --- what no table holds ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "fine"),
    [
        (3, True), (np.int64(3), True), (np.uint8(3), True), (np.array(3), True), (torch.tensor(3), True),
        (True, False), (np.bool_(True), False), (torch.tensor(True), False), (3.0, False), (np.float64(3), False),
        (torch.tensor(3.0), False), (torch.tensor([3]), False), (np.array([3]), False), ("3", False), (None, False),
        (math.nan, False), (3 + 0j, False), (torch.empty((), dtype=torch.long, device="meta"), False), (0, False), (11, False),
    ],
)  # fmt: skip
def test_what_a_count_is(value, fine):
    if fine:
        found = check_count("f", "n", value, 1, 10)
        assert found == 3
        assert type(found) is int
        return
    with pytest.raises(GibbsianError, match=r"f\(n=.*must be a whole number from 1 to 10"):
        check_count("f", "n", value, 1, 10)


def test_a_float_that_is_whole_is_told_what_was_meant():
    with pytest.raises(GibbsianError, match=r"sample\(steps=100.0\).*give steps=100"):
        gb.sample(mlp(), HMC(), real(), steps=100.0, generator=g())


OPTIMIZERS = {
    "closure": (torch.optim.LBFGS, "LBFGS does not fit"),
    "sparse": (torch.optim.SparseAdam, "SparseAdam does not fit"),
    "unknown": ("lbfgs", "is unknown"),
    "number": (3, "is unknown"),
    "option": ({"name": "sgd", "foo": 1}, "refuses its options"),
    "nothing": (lambda p: None, "returned a NoneType"),
    "arguments": (lambda: None, "cannot be made"),
    "rate": (lambda p: torch.optim.SGD(p, lr=-1.0), "Invalid learning rate"),
    "scheduler": (torch.optim.lr_scheduler.StepLR, "cannot be made"),
    "made before": (torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1), "parameters of its own"),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_that_do_not_fit_are_refused(name):
    optimizer, said = OPTIMIZERS[name]
    with pytest.raises(ArgumentError, match=said):
        gb.fit(mlp(), Obj.DenoisingScoreMatching(0.1), real(), steps=1, optimizer=optimizer, progress=False)


def test_a_class_of_optimizers_follows_the_learning_rate():
    steps = {}
    for optimizer in ("sgd", torch.optim.SGD):
        energy = mlp()
        gb.fit(energy, Obj.DenoisingScoreMatching(0.1), real(), steps=2, lr=0.3, optimizer=optimizer, progress=False)
        steps[optimizer] = torch.cat([p.detach().flatten() for p in energy.parameters()])
    torch.testing.assert_close(steps["sgd"], steps[torch.optim.SGD])


def test_precision_of_numbers_is_that_of_what_they_meet():
    points = torch.zeros(2, 1, dtype=torch.float64)
    assert float(energies.Parzen(points, 0.1).bandwidth[0]) == 0.1
    found = gb.maximum_entropy(lambda x: x, [0.7], domains.Binary(1), tolerance=1e-12)
    assert float(found.moments[0]) == pytest.approx(0.7, abs=1e-10)  # in single precision it would be 1e-8 off


@pytest.mark.parametrize("domain", [gb.domains.Binary(3), gb.domains.Spin(3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_valued_domains_hold_their_values_and_nothing_near_them(domain, dtype):
    tiny = torch.finfo(dtype).tiny
    odd = [0.0, 1.0, -1.0, 0.5, 2.0, tiny, -tiny, tiny / 4, 1e-30, 1e300, -1e300, torch.nan, torch.inf, -torch.inf]
    values = torch.tensor(odd, dtype=dtype)
    values = torch.cat(
        [
            values,
            torch.nextafter(values, torch.full_like(values, 9)),
            torch.nextafter(values, -torch.full_like(values, 9)),
        ]
    )
    for value in values:
        x = torch.ones(2, 3, dtype=dtype)
        x[1, 2] = value
        assert domain.holds(x) == bool(domain.contains(x).all()), float(value)


@pytest.mark.parametrize(
    "visible", [gb.units.Joined(gb.units.Softmax(1, 2), gb.units.Gaussian(1)), gb.units.Count(3, total=4)]
)
@pytest.mark.parametrize(
    "use",
    [
        lambda rbm, x: gb.minimize(rbm, x),
        lambda rbm, x: gb.elastic_band(rbm, x[0], x[1]),
        lambda rbm, x: gb.denoise(rbm, x, 0.5),
        lambda rbm, x: gb.inpaint(rbm, x, torch.zeros(3, dtype=torch.bool)),
        lambda rbm, x: gb.recommend(gb.as_energy(rbm, rbm.domain)),
    ],
    ids=["minimize", "band", "denoise", "inpaint", "recommend"],
)
def test_mixed_states_and_counts_are_not_taken_for_real_numbers(use, visible):
    rbm = models.RBM(visible, 2)
    x = rbm.domain.sample(2, generator=torch.Generator().manual_seed(0))
    with pytest.raises(GibbsianError, match=r"Joined\(|Counts\("):
        use(rbm, x)
