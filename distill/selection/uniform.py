"""`uniform`: softmax layers at equal distances."""


def uniform_layers(layers: int, k: int) -> tuple[int, ...]:
    """Layer ⌊i · L / K⌋ for i = 0 … K − 1: the first layer of each of K parts of equal size.

    Distances differ by at most one, and every K from 1 to L is possible. The papers print the idea ("one
    roughly every ⌊L/K⌋ blocks", KL-guided selection, section 4.2; "spaced at equal intervals", arXiv
    2603.26556, Appendix D) and sets that no single rule gives. For L = 36 this rule gives the published
    sets of 25, 33 and 50 % (K = 9, 12, 18), for L = 28 that of K = 9. It differs from

    - L = 28, K = 5: {0, 6, 11, 16, 21} in Table 11 of arXiv 2603.26556, {0, 5, 11, 16, 22} here;
    - L = 28, K = 7: {0, 5, 9, 13, 17, 21, 25} there, {0, 4, 8, 12, 16, 20, 24} here; the configurations
      published with KL-guided selection take the last layer of each part, {3, 7, …, 27}, as they do for
      K = 4 and 14;
    - L = 36, K = 5: {0, 8, 16, 24, 32} there, a fixed distance of 8, {0, 7, 14, 21, 28} here.

    All of these ship as `fixed` lists.
    """
    return tuple(i * layers // k for i in range(k))
