"""What the ranks of a mesh should hold of the tensors that one rank computed: their samples, positions and features.

Which samples and positions a rank has is found by what its model is called with, and which part of a parameter it holds by the
initial elements. So a program may divide them as it likes.
"""

import collections
import itertools

import torch

MAX_OPTIONS = 64  # per tensor
PREFERRED = ("tp", "ep", "cp", "sp", "dp", "dp_cp", "expert_dp")  # of kinds with the same groups


class Mesh:
    """The groups of ranks by kind, such as {"tp": [[0, 1], [2, 3]]}: those of more than one rank, each once."""

    def __init__(self, groups, num_ranks):
        self.num_ranks, self._groups = num_ranks, {}
        for kind in sorted(groups, key=lambda kind: PREFERRED.index(kind) if kind in PREFERRED else len(PREFERRED)):
            ranks = groups[kind]
            if len(ranks[0]) > 1 and ranks not in self._groups.values():
                self._groups[kind] = ranks
        if [list(range(num_ranks))] not in self._groups.values():
            self._groups["world"] = [list(range(num_ranks))]
        self.kinds = list(self._groups)

    def size(self, kind):
        return len(self._groups[kind][0]) if kind in self._groups else 1

    def members(self, rank, kind):
        return next((group for group in self._groups.get(kind, []) if rank in group), [rank])

    def place(self, rank, kind):
        return self.members(rank, kind).index(rank)

    def kind_of(self, ranks):
        """Of a group; the ranks as a text if it is none of the mesh."""
        return next((kind for kind in self.kinds if list(ranks) in self._groups[kind]), "ranks " + ",".join(map(str, ranks)))

    def kind_with(self, *ranks):
        """The first kind whose group has all these ranks."""
        return next((kind for kind in self.kinds if set(ranks) <= set(self.members(ranks[0], kind))), "world")


class Batch:
    """Which rows and positions of one rank's batch a rank has; None: all, in order."""

    def __init__(self, rows, positions, whole_rows, own_rows, length):
        """`whole_rows`, `own_rows`: what identifies the samples of one rank, at these positions, and of the rank itself.
        `length`: the number of positions."""
        self.rows = None if _is_all(rows, len(whole_rows)) else rows
        self.positions, self.whole_rows, self.own_rows, self.length = positions, whole_rows, own_rows, length
        self.num_rows = len(whole_rows)


class LayoutParts:
    def __init__(self, one, run, mesh):
        self._one, self._run, self.mesh = one, run, mesh
        self._step, self._batches = -1, {}  # those of a step, by rank
        self.kinds_of_one_batch = []  # of groups whose ranks have the same samples
        self.has_equal_samples = False  # in this step, so that a rank's samples are not known for certain
        self._indices = {}  # by parameter and rank: the index of each dimension that is divided
        self._sizes = {}  # of complete parameters

    # --- samples and positions ------------------------------------------------------------------------------------------

    def note_batch(self, key):
        """Reads which samples a model is called with. Returns (rank, cause) if a rank's are not among those of one rank, ranks
        that should have the same have others, or no rank has some. A model that is called with what another one has computed
        in this step has that one's samples."""
        if key.step != self._step:
            self._step, self._batches, self.has_equal_samples = key.step, {}, False
        whole = self._inputs(self._one, 0, key)
        if not whole:
            return None
        batches, uses = {}, collections.Counter()  # of one rank's samples
        for rank in range(self._run.num_ranks):
            own = self._inputs(self._run, rank, key)
            peer = batches.get(self.mesh.members(rank, "tp")[0])
            batches[rank] = self._batch_of(whole, own, rank, uses, peer) if len(own) == len(whole) else None
            if batches[rank] is None and self._batches:
                return None
            if batches[rank] is None:
                return rank, "one rank does not compute with these samples in this step"
        for rank, batch in batches.items():
            self._batches.setdefault(rank, []).append(batch)
        rows = batches[0].whole_rows
        self.has_equal_samples = self.has_equal_samples or len(set(rows)) < len(rows)
        known = {row for batch in batches.values() for row in batch.own_rows}
        lost = [index for index, row in enumerate(rows) if row not in known] if batches[0].positions is None else []
        if lost:
            return 0, f"no rank has the samples {_first_of(lost)} of one rank's batch: another batch size, or another sampler"
        strangers = {kind: self._stranger(kind) for kind in self.mesh.kinds}
        for kind in ("tp", "cp", "sp"):
            if strangers.get(kind) is not None:
                rank, first = strangers[kind]
                return rank, f"rank {first}, which is in the same group of {kind}, has other samples"
        self.kinds_of_one_batch = [kind for kind, stranger in strangers.items() if stranger is None]
        return None

    def _stranger(self, kind):
        """The first rank that has other samples than the first rank of its group, and that one; None if there is none."""
        for rank in range(self._run.num_ranks):
            first = self.mesh.members(rank, kind)[0]
            if not _is_equal(self.batch(rank).rows, self.batch(first).rows):
                return rank, first
        return None

    def batch(self, rank):
        """The first one of the step."""
        return next(iter(self._batches.get(rank, [])), None)

    @staticmethod
    def _inputs(run, rank, key):
        """Those with samples."""
        seen = run.find(rank, key)
        tensors = [] if seen is None else [run.tensor(rank, stored) for stored in seen.tensors]
        tensors = [tensor for tensor in tensors if tensor.dim() > 0]
        return [tensor for tensor in tensors if tensor.shape[0] == tensors[0].shape[0]]

    def _batch_of(self, whole, own, rank, uses, peer):
        """Of all inputs together. Samples are in the first dimension, or in the second one after positions. `peer`: the batch
        of a rank that should have the same samples; None: there is none before."""
        if [tensor.dim() for tensor in whole] != [tensor.dim() for tensor in own]:
            return None
        turned = [[tensor.transpose(0, 1) for tensor in tensors if tensor.dim() > 1] for tensors in (whole, own)]
        for wholes, owns in ((whole, own), turned):
            batch = self._batch_in_rows(wholes, owns, rank, uses, peer) if owns else None
            if batch is not None:
                return batch
        return None

    def _batch_in_rows(self, whole, own, rank, uses, peer):
        own_rows = _rows_of(own)
        if peer is not None and own_rows == peer.own_rows:
            return peer
        length, own_length = (max((t.shape[1] for t in tensors if t.dim() > 1), default=1) for tensors in (whole, own))
        for positions in self._positions(rank, length, own_length):
            values = [t.index_select(1, positions) if positions is not None and t.dim() > 1 and t.shape[1] == length else t
                      for t in whole]
            whole_rows = _rows_of(values)
            rows = _find_rows(own_rows, whole_rows, uses)
            if rows is not None:
                return Batch(rows, positions, whole_rows, own_rows, length)
        return None

    def _positions(self, rank, length, own_length):
        """The orders in which a rank may have a part of the positions: in one piece, an early and a late one, or every n-th."""
        if length == own_length:
            yield None
        for kind in self.mesh.kinds:
            size, place = self.mesh.size(kind), self.mesh.place(rank, kind)
            if own_length * size != length:
                continue
            yield torch.arange(length).chunk(size)[place]
            pieces = torch.arange(length).chunk(2 * size)
            if len(pieces) == 2 * size:
                yield torch.cat([pieces[place], pieces[2 * size - 1 - place]])
            yield torch.arange(place, length, size)

    # --- parameters -----------------------------------------------------------------------------------------------------

    def note_parameter(self, key):
        """Finds which part of a parameter each rank holds. Returns (rank, cause) if a rank holds something else, or no rank
        holds some part; `None, text` if the parameter cannot be compared."""
        whole = self._one.tensor(0, self._one.find(0, key).tensors[0])
        held = [torch.zeros(size, dtype=torch.bool) for size in whole.shape]
        for rank in range(self._run.num_ranks):
            seen = self._run.find(rank, key)
            if seen is None:
                continue
            stored = seen.tensors[0]
            own = self._run.tensor(rank, stored)
            if own.dim() != whole.dim():
                return None, f"{key.name} is not compared: ranks hold it in another form"
            indices = next(self._fitting_indices(whole, own, stored, rank), None)
            if indices is None:
                return rank, ""
            self._indices[key.name, rank] = indices
            self._sizes[key.name] = whole.shape
            for dim, index in enumerate(indices):
                held[dim][slice(None) if index is None else index] = True
        for dim, known in enumerate(held):
            lost = (~known).nonzero().flatten().tolist()
            if lost:
                return 0, f"no rank holds the elements {_first_of(lost)} of dimension {dim}: a wrong part"
        return None

    def _fitting_indices(self, whole, own, stored, rank):
        def fits(indices):
            return torch.equal(_select(whole, indices), own)

        if (offsets := stored.get("offsets")) is not None:
            ranges = [torch.arange(begin, begin + size) for begin, size in zip(offsets, own.shape)]
            if all(int(r[-1]) < size for r, size in zip(ranges, whole.shape) if len(r)):
                indices = [None if len(r) == size else r for r, size in zip(ranges, whole.shape)]
                if fits(indices):
                    yield indices
        options = [self._shares(rank, size, part, self.mesh.kinds) for size, part in zip(whole.shape, own.shape)]
        yield from filter(fits, itertools.islice(itertools.product(*options), MAX_OPTIONS))
        divided = [dim for dim in range(whole.dim()) if own.shape[dim] != whole.shape[dim]]
        if len(divided) == 1:
            rows = _find_rows(*(_rows_of([tensor.movedim(divided[0], 0)]) for tensor in (own, whole)), collections.Counter())
            if rows is not None:
                yield [rows if dim == divided[0] else None for dim in range(whole.dim())]

    def _shares(self, rank, size, part, kinds):
        """Indices of a dimension that ranks of a group may divide, where a rank holds this part."""
        if size == part:
            return [None]
        shares = []
        for kind in kinds:
            pieces = torch.arange(size).chunk(self.mesh.size(kind))
            place = self.mesh.place(rank, kind)
            index = pieces[place] if place < len(pieces) else torch.arange(0)
            if len(index) == part:
                shares.append(index)
        return shares

    def has_parameter(self, name, rank):
        return (name, rank) in self._indices

    def kinds_of_divided(self):
        """Of the smallest groups whose ranks hold different parts of a parameter."""
        kinds = [kind for kind in self.mesh.kinds if any(
            not _is_same_part(indices, self._indices.get((name, self.mesh.members(rank, kind)[0]), indices))
            for (name, rank), indices in self._indices.items())]
        groups = {kind: set(self.mesh.members(0, kind)) for kind in kinds}
        return [kind for kind in kinds if not any(groups[other] < groups[kind] for other in kinds)]

    def own_parameter(self, name, rank, whole):
        return _select(whole, self._indices[name, rank])

    # --- what modules are called with and return -------------------------------------------------------------------------

    def own_values(self, name, rank, whole, sizes):
        """What a rank's tensor of these sizes may be: the likeliest first."""
        if len(sizes) != whole.dim():
            return
        options = [self._options(name, rank, whole.shape[dim], size) for dim, size in enumerate(sizes)]
        for indices in itertools.islice(itertools.product(*options), MAX_OPTIONS):
            yield _select(whole, indices)

    def _options(self, name, rank, size, part):
        options = []
        for batch in self._batches.get(rank, []):
            rows = torch.arange(batch.num_rows) if batch.rows is None else batch.rows
            positions = torch.arange(batch.length) if batch.positions is None else batch.positions
            flat = (rows.unsqueeze(1) * batch.length + positions).flatten()
            turned = (positions.unsqueeze(1) * batch.num_rows + rows).flatten()
            numbers = batch.num_rows * batch.length
            for count, index in ((batch.num_rows, rows), (batch.length, positions), (numbers, flat), (numbers, turned)):
                if size % count != 0:
                    continue
                index = _repeated(index, size // count)  # as where each sample has several heads or patches
                if len(index) == part:
                    options.append(index)
                # Ranks of a sequence-parallel region divide the positions once more.
                shares = self._shares(rank, len(index), part, self.kinds_of_one_batch)
                options += [index[share] for share in shares if share is not None]
        weight = self._indices.get((f"{name}.weight", rank))
        is_divided = weight is not None and len(weight) > 0 and weight[0] is not None
        if is_divided and len(weight[0]) == part and self._sizes[f"{name}.weight"][0] == size:
            options.append(weight[0])
        options += self._shares(rank, size, part, self.kinds_of_one_batch)
        distinct = []
        for option in options:
            option = None if option is not None and _is_all(option, size) else option
            if not any(_is_equal(option, known) for known in distinct):
                distinct.append(option)
        return distinct


def _first_of(numbers):
    return ", ".join(map(str, numbers[:4])) + (", ..." if len(numbers) > 4 else "")


def _is_all(index, size):
    return len(index) == size and torch.equal(index, torch.arange(size))


def _is_equal(a, b):
    return a is b or (a is not None and b is not None and torch.equal(a, b))


def _is_same_part(a, b):
    return all(_is_equal(own, other) for own, other in zip(a, b))


def _select(whole, indices):
    for dim, index in enumerate(indices):
        if index is not None:
            whole = whole.index_select(dim, index)
    return whole


def _repeated(index, count):
    """The index of a dimension in which each element of the other one has several."""
    return (index.unsqueeze(1) * count + torch.arange(count)).flatten() if count > 1 else index


def _rows_of(tensors):
    """What identifies each row of all tensors together."""
    rows = zip(*([(tuple(row.shape), row.contiguous().numpy().tobytes()) for row in tensor] for tensor in tensors))
    return list(rows)


def _find_rows(own, whole, uses):
    """The indices of rows that equal those of `own`; None if one is missing. Of equal rows the least used one is taken."""
    places = {}
    for index, row in enumerate(whole):
        places.setdefault(row, []).append(index)
    found = []
    for row in own:
        known = places.get(row)
        if not known:
            return None
        found.append(min(known, key=lambda index: uses[index]))
        uses[found[-1]] += 1
    return torch.tensor(found, dtype=torch.long)
