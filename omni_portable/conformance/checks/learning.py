"""Does training on the device improve the policy as it does on the CPU?"""

from __future__ import annotations

from omni_portable.conformance.check import Check, Measurement, NotRun, Outcome
from omni_portable.conformance.context import Context
from omni_portable.conformance.evidence.learning import (
    LEARNING,
    WIDTH,
    Curve,
    LearningReference,
    check_keys,
    learning_config,
    read_reference,
    run_curve,
)
from omni_portable.conformance.evidence.recording import golden_folder, model_name


def _reward_curve(context: Context) -> Outcome:
    path = context.config.model.path
    folder = golden_folder(path)
    if not (folder / LEARNING).is_file():
        raise NotRun(f"no learning curve is recorded for the model '{model_name(path)}'")
    reference = read_reference(folder)
    config = learning_config(
        reference.recipe,
        reference.overrides,
        reference.curves[0].seed,
        context.work / "learning",
        context.config.device,
        context.config,
    )
    check_keys(reference, config)
    return judge(run_curve(config), reference)


def judge(curve: Curve, reference: LearningReference) -> Outcome:
    """Hold a curve against the reference.

    Criteria: the reward of every step, and the gain on held-out prompts, lie within `WIDTH` standard deviations of the
    reference's mean; and the gain is at least twice the standard deviation that gains have between seeds.
    """
    mean, deviation = reference.mean, reference.deviation
    first = reference.curves[0]
    distances = [abs(reward - middle) / deviation for reward, middle in zip(curve.rewards, mean, strict=True)]
    gain_distance = abs(curve.gain - reference.mean_gain) / reference.gain_deviation
    same_seed = max(abs(a - b) for a, b in zip(curve.rewards, first.rewards, strict=True))
    return Outcome(
        [
            Measurement("largest_distance_of_a_step", max(distances), "sd of the reference", "<=", WIDTH),
            Measurement("distance_of_the_gain", gain_distance, "sd of the reference", "<=", WIDTH),
            Measurement("gain_on_held_out_prompts", curve.gain, "", ">=", 2 * reference.gain_deviation),
            Measurement("gain_of_the_reference", reference.mean_gain),
            Measurement("score_before", curve.before),
            Measurement("score_after", curve.after),
            Measurement("largest_distance_to_the_same_seed", same_seed),
        ],
        f"{len(curve.rewards)} steps of {reference.recipe} with reduced batches, against {len(reference.curves)} seeds "
        "on the CPU.",
        {"seed": str(curve.seed), "recorded": str(reference.provenance.get("date", ""))},
        {
            "reward on this device": list(curve.rewards),
            "reference mean": mean,
            "band low": [middle - WIDTH * deviation for middle in mean],
            "band high": [middle + WIDTH * deviation for middle in mean],
        },
    )


CHECKS: tuple[Check, ...] = (
    Check(
        "learning.reward-curve",
        "learning",
        "A short training run raises the held-out score, and its reward stays within the band of the CPU reference.",
        "full",
        _reward_curve,
        "if golden.* and consistency.* pass, look at the run's own report (rewards, gradient norms, clip fraction); "
        "otherwise mend those first",
    ),
)
