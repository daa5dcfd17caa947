"""What cards are sold as, and what they really give a process."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.errors import WrongInput, nearest
from tuner.units import GIB, gib_to_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One card that a strategy can be searched for."""

    name: str
    nominal_bytes: int
    """The size that it is sold as: the budget."""
    gives_bytes: int
    """The total that CUDA reports, the least that was seen: drivers differ by some 0.15 GiB."""
    multiprocessors: int
    """Streaming multiprocessors, as CUDA counts them."""
    device_names: tuple[str, ...]
    """As the driver names it."""
    has_bf16: bool = True
    """Does it multiply bfloat16 itself? Turing and before do not (compute capability below 8.0)."""

    def is_real(self, device_name: str, device_total_bytes: int) -> bool:
        """Is this the card of that name? Not where it has more than it is sold with (cards rebuilt with 48 GiB)."""
        return device_name in self.device_names and device_total_bytes <= self.nominal_bytes


def _card(
    name: str, nominal: int, gives: float, multiprocessors: int, *device_names: str, has_bf16: bool = True
) -> Card:
    return Card(
        name=name,
        nominal_bytes=nominal * GIB,
        gives_bytes=gib_to_bytes(gives),
        multiprocessors=multiprocessors,
        device_names=device_names,
        has_bf16=has_bf16,
    )


CARDS = (
    # What torch prints of them in public: "GPU 0 has a total capacity of ...", and Unsloth's "Max memory: ...".
    # 23.51 with torch 2.10 (cu130), 23.52 in Soul-AILab/SoulX-FlashTalk#5, 23.61 in pinokiofactory/flux-webui#11,
    # 23.64 in ali-vilab/VGen#104; 128 multiprocessors: 16,384 cores.
    _card("rtx4090", 24, 23.51, 128, "NVIDIA GeForce RTX 4090"),
    # 23.56 with the drivers of 2025 and later, 23.68 to 23.70 before (GaoLii/DSP#10, Lightning-AI/lit-llama#137).
    _card("rtx3090", 24, 23.56, 82, "NVIDIA GeForce RTX 3090"),
    # With ECC, as clouds run it: NVML 23,028 MiB (modal-labs/modal-client#2797), torch 22.05 to 22.06. Without
    # it is 23.70 (tatsu-lab/stanford_alpaca#76).
    _card("a10", 24, 22.05, 72, "NVIDIA A10"),
    # With ECC (AWS g5): 21.98 to 21.99 with the drivers of 2024, 22,587 MiB and 80 multiprocessors with later ones.
    _card("a10g", 24, 21.98, 80, "NVIDIA A10G"),
    # With ECC: NVML 23,034 MiB (lmstudio-ai/lmstudio-bug-tracker#1638), torch 22.03 to 22.17.
    _card("l4", 24, 22.03, 58, "NVIDIA L4"),
    # With ECC: 14.56 to 14.58 (Zheng-Chong/CatVTON#133, facebookresearch/tribev2#28), 14.74 before.
    _card("t4", 16, 14.56, 40, "Tesla T4", "NVIDIA T4", has_bf16=False),
    # 39.38 to 39.56 (TianheWu/CoSeR#10: 39.50).
    _card("a100-40", 40, 39.38, 108, "NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB", "A100-SXM4-40GB"),
    # 31.34 to 31.39 (Wan-Video/Wan2.1#465: 31.37); 170 multiprocessors: 21,760 cores.
    _card("rtx5090", 32, 31.34, 170, "NVIDIA GeForce RTX 5090"),
    # With ECC: 44.39 to 44.53 (Wan-Video/Wan2.1#205), 142 multiprocessors.
    _card("l40s", 48, 44.39, 142, "NVIDIA L40S"),
)
"""Cards whose total is known from what people report; one that is not in here is asked for by ``--budget-gb``."""


def find_card(name: str) -> Card:
    """Return the card of that name.

    Raises:
        WrongInput: it is not known.
    """
    named = {card.name: card for card in CARDS}
    key = name.strip().lower().replace("_", "-").replace(" ", "-")
    key = key if key in named else key.replace("-", "")
    if key in named:
        return named[key]
    known = ", ".join(named)
    hint = nearest(key, named) or "for another card give its size with --budget-gb"
    raise WrongInput("card", f"must be one of {known}", name, hint)
