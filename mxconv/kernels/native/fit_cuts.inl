// The dynamic program of mxconv/codecs/bsfp/fit.py (`best_cuts`), with the same operations on the same numbers. Included
// inside an anonymous namespace.
//
// There the cost of k segments that end before cut j is a minimum over a matrix; here rows of that matrix, one a first
// cut, are computed one after another and improve all eight minima at once, so that none is kept.

double fit_cuts(const Cells& cells, double price, double* row, double* best, int64_t* origins, int64_t* chosen) {
    const int64_t n = cells.num_cuts;
    const double infinity = __builtin_inf();
    const double signal = cells.second[n] > 0x1p-1022 ? cells.second[n] : 0x1p-1022;
    const double all = cells.weights[n] > 1 ? cells.weights[n] : 1;
    for (int64_t i = 0; i < 8 * n; ++i) {
        best[i] = infinity;
        origins[i] = 0;
    }
    // the relative error of the segment from cut i to before cut j; `from` is where its weights begin
    const auto error_of = [&](double m, double f, double s) {
        const double is_some = m > 0 ? m : 1;
        const double left = s - (m > 0 ? f * f / is_some : 0);
        return (left > 0 ? left : 0) / signal;
    };
    for (int64_t i = 0; i < n; ++i) {
        const double reach = cells.reach[i], below = cells.weights[i];
        for (int is_first = 1; is_first >= 0; --is_first) {
            const double mass = is_first ? 0 : cells.mass[i], first = is_first ? 0 : cells.first[i];
            const double second = is_first ? 0 : cells.second[i], weights = is_first ? 0 : below;
            for (int64_t j = i; j < n; ++j) {
                const double error =
                    error_of(cells.mass[j + 1] - mass, cells.first[j + 1] - first, cells.second[j + 1] - second);
                const double end = cells.weights[j + 1];
                const double covered = (end < reach ? end : reach) - below;
                row[j] = error + price * ((end - weights - covered) / all);
            }
            if (is_first) {
                for (int64_t j = i; j < n; ++j) {
                    const bool is_less = row[j] < best[j];
                    best[j] = is_less ? row[j] : best[j];
                    origins[j] = is_less ? i : origins[j];
                }
            }
        }
        if (i == 0) continue;
        for (int64_t k = 1; k < 8; ++k) {
            const double before = best[(k - 1) * n + i - 1];
            double* bests = best + k * n;
            int64_t* from = origins + k * n;
            for (int64_t j = i; j < n; ++j) {
                const double total = before + row[j];
                const bool is_less = total < bests[j];
                bests[j] = is_less ? total : bests[j];
                from[j] = is_less ? i : from[j];
            }
        }
    }
    double left = 0;
    int64_t stop = n - 1;
    for (int64_t k = 7; k >= 0; --k) {
        const int64_t start = origins[k * n + stop];
        const double mass = k ? cells.mass[start] : 0, first = k ? cells.first[start] : 0;
        const double second = k ? cells.second[start] : 0;
        left += error_of(cells.mass[stop + 1] - mass, cells.first[stop + 1] - first, cells.second[stop + 1] - second);
        chosen[k] = start;
        stop = start - 1;
        if (stop < 0) stop = 0;  // only where costs are no numbers
    }
    return left;
}
