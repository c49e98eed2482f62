"""Random predictions and targets, and what scikit-learn and torchmetrics say of them.

A request has the name of a metric, its options, and one list of samples for each batch: {"metric": "f_beta", "options":
{"num_classes": 3, "average": "macro", "beta": 0.5}, "predictions": [[...], ...], "targets": [[...], ...]}. An answer is a number,
NaN as null. Where the two packages differ, or one raises an error, the comments below say which is followed.
"""
import math
import warnings

import numpy as np
import sklearn.metrics
import torch
import torchmetrics.functional as tm

warnings.simplefilter("ignore")

CLASSIFICATIONS = ("precision", "recall", "f_beta")
METRICS = ("accuracy", *CLASSIFICATIONS, "confusion_matrix", "matthews", "auroc", "average_precision", "mse", "mae", "r2", "pearson", "perplexity")


def joined(batches):
    return [sample for batch in batches for sample in batch]


def random_request(rng):
    metric = rng.choice(METRICS)
    num_classes = rng.randint(2, 5)
    batches = [rng.choice((0, 1, 2, 7)) for _ in range(rng.randint(1, 6))]
    present = rng.sample(range(num_classes), rng.randint(1, num_classes))  # some classes may be absent
    options = {"num_classes": num_classes}
    labels = [[rng.choice(present) for _ in range(size)] for size in batches]
    if metric in CLASSIFICATIONS:
        options["average"] = rng.choice(("micro", "macro", "weighted", *(["binary"] if num_classes == 2 else [])))
    if metric == "f_beta":
        options["beta"] = rng.choice((0.5, 1.0, 2.0))
    if metric == "accuracy" and num_classes > 2:
        options["top_k"] = rng.randint(1, num_classes - 1)
    if metric in ("auroc", "average_precision"):
        grid = rng.choice((4, 1000))  # equal scores, or none

        def score():
            return rng.randrange(grid) / grid

        predictions = [[score() if num_classes == 2 else [score() for _ in range(num_classes)] for _ in range(size)] for size in batches]
    elif metric in ("mse", "mae", "r2", "pearson"):
        options = {}
        centre, spread = rng.choice(((0, 1), (1000, 1), (0, 1e-3)))
        labels = [[rng.gauss(centre, spread) for _ in range(size)] for size in batches]
        predictions = [[label + rng.gauss(0, spread / 2) for label in batch] for batch in labels]
    elif metric == "perplexity":
        options = {"ignore_index": rng.choice((-100, 1))} if rng.random() < 0.5 else {}
        labels = [[rng.choice([*range(5), *([options["ignore_index"]] if options else [])]) for _ in range(size)] for size in batches]
        predictions = [[[rng.gauss(0, 2) for _ in range(5)] for _ in range(size)] for size in batches]
    elif metric == "accuracy":
        predictions = [[[rng.random() for _ in range(num_classes)] for _ in range(size)] for size in batches]
    else:
        predictions = [[rng.choice(present) if rng.random() < 0.7 else rng.randrange(num_classes) for _ in range(size)] for size in batches]
    return {"metric": metric, "options": options, "predictions": predictions, "targets": labels}


def number(value):
    value = float(value)
    return None if math.isnan(value) else value


def sklearn_answer(request):
    """None stands for NaN: no samples, or a class without positives or negatives, for which scikit-learn warns or raises."""
    metric, options = request["metric"], request["options"]
    predictions, targets = np.array(joined(request["predictions"])), np.array(joined(request["targets"]))
    if metric == "confusion_matrix":
        return sklearn.metrics.confusion_matrix(targets, predictions, labels=range(options["num_classes"])).tolist() if len(targets) else None
    if len(targets) == 0:
        return None
    if metric == "accuracy":
        hits = np.argsort(-predictions, axis=1, kind="stable")[:, : options.get("top_k", 1)] == targets[:, None]
        return number(hits.any(axis=1).mean())
    if metric in CLASSIFICATIONS:
        function = {"precision": sklearn.metrics.precision_score, "recall": sklearn.metrics.recall_score, "f_beta": sklearn.metrics.fbeta_score}[metric]
        beta = {"beta": options["beta"]} if metric == "f_beta" else {}
        labels = {} if options["average"] == "binary" else {"labels": sorted({*targets, *predictions})}
        return number(function(targets, predictions, average=options["average"], zero_division=0, **labels, **beta))
    if metric == "matthews":
        return number(sklearn.metrics.matthews_corrcoef(targets, predictions))
    if metric in ("auroc", "average_precision"):
        columns = [(1, predictions)] if options["num_classes"] == 2 else [(index, predictions[:, index]) for index in range(options["num_classes"])]
        values = []
        for index, scores in columns:
            positive = targets == index
            if not positive.any() or (metric == "auroc" and positive.all()):
                continue
            function = sklearn.metrics.roc_auc_score if metric == "auroc" else sklearn.metrics.average_precision_score
            values.append(function(positive, scores))
        return number(np.mean(values)) if values else None
    if metric == "mse":
        return number(sklearn.metrics.mean_squared_error(targets, predictions))
    if metric == "mae":
        return number(sklearn.metrics.mean_absolute_error(targets, predictions))
    if metric == "r2":
        return number(sklearn.metrics.r2_score(targets, predictions)) if len(targets) > 1 else None
    if metric == "pearson":
        return number(np.corrcoef(predictions, targets)[0, 1]) if len(targets) > 1 else None
    return torchmetrics_answer(request)


def torchmetrics_answer(request):
    """torchmetrics for the metrics that it defines alike: none of no samples, and none of one sample of r2 and pearson."""
    metric, options = request["metric"], request["options"]
    predictions, targets = (torch.tensor(np.array(joined(request[side]))) for side in ("predictions", "targets"))
    if len(targets) == 0 or (metric in ("r2", "pearson") and len(targets) < 2):
        return None
    classes = {"num_classes": options.get("num_classes"), "task": "multiclass"}
    if metric in ("mse", "mae", "r2", "pearson"):
        if metric == "r2" and targets.var() < 1e-4:
            return sklearn_answer(request)  # torchmetrics takes such targets for equal ones
        function = {"mse": tm.mean_squared_error, "mae": tm.mean_absolute_error, "r2": tm.r2_score, "pearson": tm.pearson_corrcoef}[metric]
        return number(function(predictions, targets))
    if metric == "accuracy":
        return number(tm.accuracy(predictions, targets, average="micro", top_k=options.get("top_k", 1), **classes))
    if metric in CLASSIFICATIONS:
        if options["average"] == "binary":
            classes = {"task": "binary"}
        else:
            classes["average"] = options["average"]
        if metric == "f_beta":
            return number(tm.fbeta_score(predictions, targets, beta=options["beta"], **classes))
        return number((tm.precision if metric == "precision" else tm.recall)(predictions, targets, **classes))
    if metric == "confusion_matrix":
        return tm.confusion_matrix(predictions, targets, **classes).tolist()
    if metric == "matthews":
        if predictions.unique().numel() == 1 or targets.unique().numel() == 1:
            return 0.0  # torchmetrics takes another limit there
        return number(tm.matthews_corrcoef(predictions, targets, **classes))
    if metric == "perplexity":
        # In float64, of the tokens that count.
        counted = targets != options.get("ignore_index", -1)
        if not counted.any():
            return None
        return number(torch.exp(torch.nn.functional.cross_entropy(predictions[counted], targets[counted])))
    return sklearn_answer(request)  # torchmetrics rounds scores to float32, and gives 0 to a class without positives


def value(request):
    """Of scikit-learn. Raises ValueError if torchmetrics says something else."""
    first, second = sklearn_answer(request), torchmetrics_answer(request)
    if not is_near(first, second, 1e-5):
        raise ValueError(f"{request['metric']}: scikit-learn {first}, torchmetrics {second}")
    return first


def answer(request):
    return {"value": value(request)}


def is_near(first, second, tolerance):
    if first is None or second is None or isinstance(first, list):
        return first == second
    return math.isclose(first, second, rel_tol=tolerance, abs_tol=tolerance)


def difference(theirs, ours):
    first, second = theirs["value"], ours["value"]
    return None if is_near(first, second, 1e-9) else f"{first} and {second}"
