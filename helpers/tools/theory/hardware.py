"""The reference hardware of the course in one table, and clusters made of it.

Each number says its source and how sure it is: "recorded" on a machine, by the maker's "data sheet", or
"assumed".  A bandwidth is in bytes per second, one way.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..whole import positive, whole


@dataclass(frozen=True)
class Known:
    """A number of the table; its label is "recorded", "data sheet" or "assumed"."""

    value: float
    unit: str
    label: str
    source: str


HARDWARE = {
    "H100 80GB": {
        "memory": Known(85.0e9, "bytes", "recorded", "torch's total_memory, 79.2 GiB"),
        "peak": Known(989e12, "FLOP/s in bf16", "data sheet", "NVIDIA H100, SXM, without sparsity"),
        "rate": Known(400e12, "FLOP/s in bf16", "assumed", "40 % of the peak, as good trainings reach"),
        "bandwidth": Known(3.35e12, "bytes/s of its memory", "data sheet", "NVIDIA H100, SXM, 80 GB"),
        "NVLink": Known(300e9, "bytes/s", "assumed", "large all-reduces; recorded were 277e9 to 340e9"),
        "NVLink, data sheet": Known(450e9, "bytes/s", "data sheet", "NVLink 4: 900 GB/s both ways"),
        "card": Known(50e9, "bytes/s", "data sheet", "InfiniBand NDR, 400 Gbit/s, a card for each of 8 GPUs"),
    },
    "H200": {
        "peak": Known(989e12, "FLOP/s in bf16", "data sheet", "NVIDIA H200, SXM, without sparsity"),
        "NVLink": Known(277e9, "bytes/s", "recorded", "two GPUs: recorded/constants-2-NVIDIA-H200.json"),
        "card": Known(50e9, "bytes/s", "assumed", "the same as of an H100"),
        "outside tensors": Known(2.27e9, "bytes", "recorded", "two GPUs: recorded/zero-2-NVIDIA-H200.json"),
    },
    "A100 80GB": {
        "peak": Known(312e12, "FLOP/s in bf16", "data sheet", "NVIDIA A100, SXM, without sparsity"),
        "bandwidth": Known(2.04e12, "bytes/s of its memory", "data sheet", "NVIDIA A100, SXM, 80 GB"),
        "NVLink": Known(300e9, "bytes/s", "data sheet", "NVLink 3: 600 GB/s both ways"),
        "card": Known(25e9, "bytes/s", "data sheet", "InfiniBand HDR, 200 Gbit/s"),
    },
    "A100 40GB": {
        "peak": Known(312e12, "FLOP/s in bf16", "data sheet", "NVIDIA A100, SXM, without sparsity"),
        "bandwidth": Known(1.56e12, "bytes/s of its memory", "data sheet", "NVIDIA A100, SXM, 40 GB"),
        "NVLink": Known(300e9, "bytes/s", "data sheet", "NVLink 3: 600 GB/s both ways"),
        "card": Known(25e9, "bytes/s", "data sheet", "InfiniBand HDR, 200 Gbit/s"),
    },
}
HOST = 8  # GPUs of one host
PEAKS = {  # FLOP/s in bf16 by the data sheet; names as the driver gives them
    "NVIDIA H200": HARDWARE["H200"]["peak"].value,
    "NVIDIA H100 80GB HBM3": HARDWARE["H100 80GB"]["peak"].value,
    "NVIDIA A100-SXM4-80GB": HARDWARE["A100 80GB"]["peak"].value,
}


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """GPUs that are all alike, in hosts of `host` neighbours."""

    gpus: int
    memory: float  # bytes of each
    rate: float  # FLOPs per second that each reaches
    link: float  # bytes per second, one way, of a GPU's card to other hosts; of the slowest for `ZeroPlan`
    inside: float | None = None  # bytes per second between the GPUs of one host; by default `link`
    host: int = HOST  # GPUs of one

    def __post_init__(self):
        whole(self.gpus, "gpus")
        whole(self.host, "host")
        positive(memory=self.memory, rate=self.rate, link=self.link, inside=self.within)

    @property
    def within(self) -> float:
        """Bytes per second between GPUs of one host."""
        return self.link if self.inside is None else self.inside

    def in_one_host(self, neighbours: int, gpus: int | None = None) -> bool:
        """Whether each block of so many consecutive ranks lies in one host, in a job of `gpus`."""
        gpus = self.gpus if gpus is None else gpus
        return gpus <= self.host or (neighbours <= self.host and self.host % neighbours == 0)

    def bandwidth(self, ranks: int, stride: int = 1, gpus: int | None = None) -> float:
        """Bytes per second at which a rank sends round a ring of `ranks` that lie `stride` apart, in a job of
        `gpus`, by default all of the cluster.

        A group that spans hosts has host / stride GPUs in each: its rings enter and leave a host by all of
        their cards, until NVLink is the limit.
        """
        if self.in_one_host(ranks * stride, gpus):
            return self.within
        return min(self.within, max(1, self.host // stride) * self.link)


def reference_cluster(hosts: int = 1, **changes: float) -> Cluster:
    """The course's reference: hosts of 8 "H100 80GB", NVLink inside, a card for each GPU between hosts;
    `changes` are other attributes of `Cluster`, such as a `rate` that was recorded."""
    whole(hosts, "hosts")
    names = {"memory": "memory", "rate": "rate", "link": "card", "inside": "NVLink"}
    known = {ours: HARDWARE["H100 80GB"][name].value for ours, name in names.items()}
    return Cluster(gpus=hosts * HOST, **(known | changes))
