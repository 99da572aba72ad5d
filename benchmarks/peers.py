"""The same averaging in other frameworks: pfl 0.6 and Flower 1.42, each with its own simulation.

They ask for other versions of what Confrère needs, so `simulation.py` runs them in an environment of their own.
"""

from __future__ import annotations

import os
import time
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from averaging import BATCH, DRAWN, RATE, RECORDS, final_loss, network, records
from torch import Tensor, nn


def pfl(sites: int, rounds: int) -> tuple[float, float]:
    """Apple's pfl: its own simulated backend and federated averaging."""
    import numpy as np
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data import FederatedDataset
    from pfl.data.dataset import Dataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    x, y = records(sites)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, inputs: Tensor) -> Tensor:
            return self.net(inputs)  # type: ignore[no-any-return]

        def loss(self, inputs: Tensor, targets: Tensor, eval: bool = False) -> Tensor:
            return F.cross_entropy(self(inputs), targets)

        @torch.no_grad()
        def metrics(self, inputs: Tensor, targets: Tensor, eval: bool = True) -> dict[str, Any]:
            return {"loss": Weighted(float(F.cross_entropy(self(inputs), targets)), 1)}

    net = Net()
    model = PyTorchModel(
        net, local_optimizer_create=torch.optim.SGD, central_optimizer=torch.optim.SGD(net.parameters(), 1.0)
    )
    rng = np.random.default_rng(3)
    made = {k: Dataset(raw_data=[x[k], y[k]], user_id=str(k)) for k in range(sites)}
    data = FederatedDataset(lambda user: made[user], lambda: int(rng.integers(sites)))
    marks: list[float] = []

    class Clock(TrainingProcessCallback):
        def on_train_begin(self, *, model: Any) -> Any:
            marks.append(time.process_time())
            return Metrics()

        def on_train_end(self, *, model: Any) -> None:
            marks.append(time.process_time())

    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=DRAWN,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=None),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_learning_rate=RATE, local_num_epochs=1, local_batch_size=BATCH
        ),
        callbacks=[Clock()],
    )
    return marks[-1] - marks[0], final_loss(net.net, sites)


@lru_cache(maxsize=1)
def everything(sites: int) -> tuple[Tensor, Tensor]:
    """The records, made once in each process."""
    return records(sites)


def flwr(sites: int, rounds: int) -> tuple[float, float]:
    """Flower's simulation runtime, on Ray with one worker; CPU seconds of all its processes."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client, server = ClientApp(), ServerApp()
    marks: list[float] = []
    final: list[float] = []

    @client.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        site = int(context.node_config["partition-id"])
        x, y = everything(sites)
        model = network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
        order = torch.randperm(RECORDS)
        for at in range(0, RECORDS, BATCH):
            rows = order[at : at + BATCH]
            optimiser.zero_grad()
            F.cross_entropy(model(x[site][rows]), y[site][rows]).backward()
            optimiser.step()
        content = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": RECORDS}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    def look(number: int, arrays: ArrayRecord) -> None:
        marks.append(processor_seconds())
        if number == rounds:
            model = network()
            model.load_state_dict(arrays.to_torch_state_dict())
            final.append(final_loss(model, sites))

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_train=DRAWN / sites, fraction_evaluate=0.0, min_available_nodes=sites)
        strategy.start(grid, ArrayRecord(network().state_dict()), num_rounds=rounds, evaluate_fn=look)

    run_simulation(
        server, client, sites,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": 1, "include_dashboard": False},
        },
    )  # fmt: skip
    if not final:
        raise RuntimeError("Flower's simulation ended before its last round")
    # the first round also waits for Ray's worker to come up, so it is left out
    return (marks[-1] - marks[1]) * rounds / (rounds - 1), final[0]


def processor_seconds() -> float:
    """CPU seconds of this process and of all that came from it."""
    tick = os.sysconf("SC_CLK_TCK")
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents[int(name)] = int(fields[1])
        used[int(name)] = sum(map(int, fields[11:15])) / tick  # with the children that have ended
    mine = {os.getpid()}
    while more := {p for p, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return sum(used[p] for p in mine if p in used)
