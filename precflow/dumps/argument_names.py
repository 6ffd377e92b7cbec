"""Names of arguments for tools that record a call of torch with positions alone: ``7`` of a batch norm is its ``eps``."""

from __future__ import annotations

from collections.abc import Mapping

# Of torch.nn.functional, as far as functions have settings and a signature of Python. Our own recordings name these too.
_PARAMETERS = """
adaptive_avg_pool2d input output_size
adaptive_avg_pool3d input output_size
alpha_dropout input p training inplace
batch_norm input running_mean running_var weight bias training momentum eps
binary_cross_entropy input target weight size_average reduce reduction
binary_cross_entropy_with_logits input target weight size_average reduce reduction pos_weight
celu input alpha inplace
cosine_embedding_loss input1 input2 target margin size_average reduce reduction
cross_entropy input target weight size_average ignore_index reduce reduction label_smoothing
ctc_loss log_probs targets input_lengths target_lengths blank reduction zero_infinity
dropout input p training inplace
dropout1d input p training inplace
dropout2d input p training inplace
dropout3d input p training inplace
elu input alpha inplace
embedding input weight padding_idx max_norm norm_type scale_grad_by_freq sparse
fold input output_size kernel_size dilation padding stride
gaussian_nll_loss input target var full eps reduction
glu input dim
grid_sample input grid mode padding_mode align_corners
group_norm input num_groups weight bias eps
gumbel_softmax logits tau hard eps dim
hardsigmoid input inplace
hardswish input inplace
hardtanh input min_val max_val inplace
instance_norm input running_mean running_var weight bias use_input_stats momentum eps
interpolate input size scale_factor mode align_corners recompute_scale_factor antialias
kl_div input target size_average reduce reduction log_target
layer_norm input normalized_shape weight bias eps
leaky_relu input negative_slope inplace
local_response_norm input size alpha beta k
log_softmax input dim _stacklevel dtype
margin_ranking_loss input1 input2 target margin size_average reduce reduction
mish input inplace
multi_margin_loss input target p margin weight size_average reduce reduction
nll_loss input target weight size_average ignore_index reduce reduction
normalize input p dim eps out
pad input pad mode value
poisson_nll_loss input target log_input full size_average eps reduce reduction
relu input inplace
relu6 input inplace
rms_norm input normalized_shape weight eps
selu input inplace
silu input inplace
smooth_l1_loss input target size_average reduce reduction beta
softmax input dim _stacklevel dtype
triplet_margin_loss anchor positive negative margin p eps swap size_average reduce reduction
unfold input kernel_size dilation padding stride
upsample input size scale_factor mode align_corners
"""
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    name: tuple(names) for name, *names in map(str.split, _PARAMETERS.split("\n")[1:-1])
}
"""Function of ``torch.nn.functional`` -> the names of its positional parameters."""


def name_arguments(operator: str, arguments: Mapping[str, str]) -> dict[str, str]:
    """Return the arguments of a call, those with a position in place of a name by name as far as it is known.

    >>> name_arguments("layer_norm", {"1.0": "32", "4": "1e-05"})
    {'normalized_shape.0': '32', 'eps': '1e-05'}
    >>> name_arguments("conv2d", {"3.0": "1"})
    {'3.0': '1'}
    """
    names = PARAMETERS.get(operator, ())
    return {_name(path, names): value for path, value in arguments.items()}


def _name(path: str, names: tuple[str, ...]) -> str:
    place, dot, rest = path.partition(".")
    return f"{names[int(place)]}{dot}{rest}" if place.isdecimal() and int(place) < len(names) else path
