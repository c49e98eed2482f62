"""Tests that random requests reach every mode and boundary: python properties/oracle/plan_requests_test.py"""
import random
import unittest

import plan
import plan_requests

REQUESTS = [plan_requests.random_request(random.Random(seed)) for seed in range(2000)]  # as many as in a run
ASKED = [request for request in REQUESTS if not plan.is_refused(request)]


class RandomRequestTest(unittest.TestCase):
    def test_every_field_of_a_request_is_given(self):
        for request in REQUESTS:
            self.assertEqual(request.keys(), plan.DEFAULTS.keys() | {"length", "batch_size", "ranks"})

    def test_every_value_of_a_mode_is_asked_for_on_few_ranks_and_on_many(self):
        modes = {
            "iterable": {False, True}, "drop_last": {False, True}, "shuffle": {False, True}, "split_batches": {False, True},
            "even_batches": {False, True}, "dispatch_batches": {None, False, True}, "use_seedable_sampler": {False, True},
            "epochs": {0, 1, 2, 3}, "skip_batches": {0, 1, 2, 3, 40},
        }  # fmt: skip
        for ranks in (range(1, 2), range(2, 5), range(5, 9), range(9, 17)):
            requests = [request for request in ASKED if request["ranks"] in ranks]
            for field, values in modes.items():
                self.assertEqual({request[field] for request in requests}, values, f"{field}, ranks {ranks}")

    def test_lengths_are_at_every_boundary_and_beside_it(self):
        for unit in (plan.group_size, lambda request: request["batch_size"]):
            for beside in (-1, 0, 1):
                near = [request for request in ASKED if (request["length"] - beside) % unit(request) == 0 and unit(request) > 2]
                self.assertGreater(len(near), 20)
        self.assertGreater(sum(request["length"] == 0 for request in ASKED), 20)
        self.assertGreater(sum(0 < request["length"] < request["ranks"] for request in ASKED), 20)

    def test_what_cannot_be_is_asked_for_too(self):
        self.assertGreater(len(REQUESTS) - len(ASKED), 20)
        splits = [request for request in ASKED if request["split_batches"] and request["batch_size"] % request["ranks"] != 0]
        self.assertGreater(len(splits), 20)

    def test_what_accelerate_would_answer_wrongly_is_not_asked_for(self):
        self.assertEqual([request for request in ASKED if not plan.can_be_asked(request)], [])


if __name__ == "__main__":
    unittest.main()
