// The dynamic program of mxconv/codecs/bsfp/fit.py (`best_cuts`), with the same operations on the same numbers. Included
// inside an anonymous namespace.
//
// There the cost of k segments that end before cut j is a minimum over a matrix; here rows of that matrix, one a first
// cut, are computed one after another and improve all eight minima at once, so that none is kept. Which cut it was is
// found out at the end, for the eight that matter.

// The relative error of a segment with these sums.
inline double segment_error(double mass, double first, double second, double signal) {
    const double divisor = mass > 0 ? mass : 1;
    const double left = second - (mass > 0 ? first * first / divisor : 0);
    return (left > 0 ? left : 0) / signal;
}

// What segments cost that begin at cut i and end before cuts [j, end); the first segment also takes all that lies below.
inline void segment_costs(const Cells& cells, double price, int64_t i, bool is_first, int64_t j, int64_t end,
                          double* costs) {
    const int64_t n = cells.num_cuts;
    const double signal = cells.second[n] > 0x1p-1022 ? cells.second[n] : 0x1p-1022;
    const double all = cells.weights[n] > 1 ? cells.weights[n] : 1;
    const double reach = cells.reach[i], below = cells.weights[i];
    const double mass = is_first ? 0 : cells.mass[i], first = is_first ? 0 : cells.first[i];
    const double second = is_first ? 0 : cells.second[i], weights = is_first ? 0 : below;
    for (; j < end; ++j) {
        const double error =
            segment_error(cells.mass[j + 1] - mass, cells.first[j + 1] - first, cells.second[j + 1] - second, signal);
        const double until = cells.weights[j + 1];
        const double covered = (until < reach ? until : reach) - below;
        costs[j] = error + price * ((until - weights - covered) / all);
    }
}

double fit_cuts(const Cells& cells, double price, double* row, double* best, int64_t* chosen) {
    const int64_t n = cells.num_cuts;
    const double infinity = __builtin_inf();
    for (int64_t i = 0; i < 8 * n; ++i) best[i] = infinity;
    for (int64_t i = 0; i < n; ++i) {
        segment_costs(cells, price, i, true, i, n, row);
        for (int64_t j = i; j < n; ++j) best[j] = row[j] < best[j] ? row[j] : best[j];
        if (i == 0) continue;
        segment_costs(cells, price, i, false, i, n, row);
        for (int64_t k = 1; k < 8; ++k) {
            const double before = best[(k - 1) * n + i - 1];
            double* bests = best + k * n;
            for (int64_t j = i; j < n; ++j) {
                const double total = before + row[j];
                bests[j] = total < bests[j] ? total : bests[j];
            }
        }
    }
    const double signal = cells.second[n] > 0x1p-1022 ? cells.second[n] : 0x1p-1022;
    double left = 0;
    int64_t stop = n - 1;
    for (int64_t k = 7; k >= 0; --k) {
        int64_t start = 0;
        double least_cost = infinity;
        for (int64_t i = k ? 1 : 0; i <= stop; ++i) {
            segment_costs(cells, price, i, k == 0, stop, stop + 1, row);
            const double total = k ? best[(k - 1) * n + i - 1] + row[stop] : row[stop];
            if (total < least_cost) {
                least_cost = total;
                start = i;
            }
        }
        const double mass = k ? cells.mass[start] : 0, first = k ? cells.first[start] : 0;
        const double second = k ? cells.second[start] : 0;
        left += segment_error(cells.mass[stop + 1] - mass, cells.first[stop + 1] - first,
                              cells.second[stop + 1] - second, signal);
        chosen[k] = start;
        stop = start > 0 ? start - 1 : 0;  // 0 before the last one only where costs are no numbers
    }
    return left;
}
