// The cost models' formulas, as mxconv/cost/ has them: speedup.py, levels.py, counts.py, roofline.py, throughput.py and
// accelerator/passes.py. A test compares every number with Python's.
"use strict";

const GIGA = 1e9;

function expectedTokens(acceptance, length) {
  return acceptance === 1 ? length + 1 : (1 - acceptance ** (length + 1)) / (1 - acceptance);
}

// of ML-SpecQD's Eq. (1), where acceptance is the share of the drafted tokens that are accepted
function acceptedTokens(share, length) {
  return share * length + 1;
}

function acceptedShare(acceptance, length) {
  return length === 0 ? 0 : (expectedTokens(acceptance, length) - 1) / length;
}

// passes: the target first, each with seconds, verifySeconds, acceptance and length
function hierarchySeconds(passes, tokensPerRound = expectedTokens) {
  const [top, draft] = passes;
  if (draft === undefined) return top.seconds;
  const drafting = draft.length * hierarchySeconds(passes.slice(1), tokensPerRound);
  return (drafting + top.verifySeconds) / tokensPerRound(draft.acceptance, draft.length);
}

function breakEven(length, draftCost, verifyCost) {
  const speedup = (acceptance) => expectedTokens(acceptance, length) / (length * draftCost + verifyCost);
  if (speedup(1) < 1) return null;
  let [low, high] = [0, 1];
  for (let step = 0; step < 60; step++) {
    const middle = (low + high) / 2;
    if (speedup(middle) >= 1) high = middle;
    else low = middle;
  }
  return high;
}

function multipliedWeights(level, numTokens) {
  if (level.num_experts === 0) return level.fixed_weights;
  const chosen = 1 - (1 - level.num_experts_per_token / level.num_experts) ** numTokens;
  return level.fixed_weights + level.expert_weights * chosen;
}

// values of the cache, or products with them, over all layers
function overPositions(level, key, context) {
  let sum = 0;
  for (const layer of level.attention) {
    const positions = layer.window === null ? context : Math.min(context, layer.window);
    sum += layer.count * layer[key] * positions;
  }
  return sum;
}

// one kernel of a pass under the roof
function rooflinePoint(hardware, kernel, peak, numTokens, numBytes, multiplyAdds) {
  const roof = Math.max(numBytes / hardware.read_bandwidth, multiplyAdds / peak) / GIGA;
  const seconds = roof / fraction(hardware.fractions[kernel], numTokens);
  return { numTokens, seconds, intensity: multiplyAdds / numBytes, attainable: multiplyAdds / seconds / GIGA };
}

// the measured share of the roofline, [[tokens, share], ...]; 1 where there is none
function fraction(points, numTokens) {
  if (points === undefined) return 1;
  for (let index = 1; index < points.length; index++) {
    const [[low, before], [high, behind]] = [points[index - 1], points[index]];
    if (low <= numTokens && numTokens <= high) return before + ((behind - before) * (numTokens - low)) / (high - low);
  }
  return numTokens < points[0][0] ? points[0][1] : points[points.length - 1][1];
}

// the products with the weights, and attention over the cache
function passPoints(hardware, level, numTokens, batch, context, kvBytesPerValue) {
  const tokens = numTokens * batch;
  const weightBytes = (multipliedWeights(level, tokens) * level.bits_per_weight) / 8;
  const cacheBytes = batch * (kvBytesPerValue * overPositions(level, "kv_values", context) + level.state_bytes);
  const products = multipliedWeights(level, 1) * tokens;
  return [
    rooflinePoint(hardware, level.kernel, level.peak, tokens, weightBytes, products),
    rooflinePoint(
      hardware,
      "attention",
      level.attention_peak,
      tokens,
      cacheBytes,
      tokens * (overPositions(level, "query_values", context) + level.state_multiply_adds),
    ),
  ];
}

function acceleratorSeconds(hardware, level, numTokens, context) {
  const machine = hardware.accelerator;
  const numPasses = Math.max(Math.ceil(numTokens / level.tokens_at_once), 1);
  const weights = multipliedWeights(level, numTokens / numPasses);
  const compute = weights / level.weights_per_cycle + overPositions(level, "query_values", context) + level.state_multiply_adds;
  const cycles = (numPasses * compute) / machine.num_elements_per_tile;
  const cacheBytes = 2 * overPositions(level, "kv_values", context) + level.state_bytes;
  const read = numPasses * ((weights * level.accelerator_bits) / 8 + cacheBytes);
  return Math.max(cycles / (machine.clock_megahertz * 1e6), read / (hardware.read_bandwidth * GIGA));
}

function passSeconds(hardware, level, numTokens, batch, context, kvBytesPerValue) {
  if (level.is_free) return 0;
  if (hardware.accelerator !== null && batch === 1) return acceleratorSeconds(hardware, level, numTokens, context);
  const points = passPoints(hardware, level, numTokens, batch, context, kvBytesPerValue);
  return points[0].seconds + points[1].seconds;
}

// levels with acceptances and lengths of the drafts, the outermost first
function levelCosts(hardware, levels, acceptances, lengths, batch, context, kvBytesPerValue) {
  return levels.map((level, index) => {
    const width = index < lengths.length ? 1 + lengths[index] * levels[index + 1].rows_per_token : 1;
    return {
      seconds: passSeconds(hardware, level, 1, batch, context, kvBytesPerValue),
      verifySeconds: passSeconds(hardware, level, width, batch, context, kvBytesPerValue),
      acceptance: index === 0 ? 0 : acceptances[index - 1],
      length: index === 0 ? 0 : lengths[index - 1],
    };
  });
}

// SPIRe's multiplier, with the tokens of the draft's acceptance
function throughputMultiplier(target, draft, batch, context, length, intensity) {
  const forward = (flops, bytes) => Math.max(flops, bytes * intensity);
  const flops = 2 * target.num_parameters * batch;
  const bytes = target.num_parameters + batch * context * target.kv_bytes_per_position;
  const seen =
    draft.window_fraction === null
      ? context
      : Math.min(draft.num_sinks + Math.floor(context * draft.window_fraction), context);
  const draftFlops = batch * (2 * draft.num_parameters + draft.memory_flops);
  const drafting = forward(draftFlops, draft.num_parameters + batch * seen * draft.kv_bytes_per_position);
  const time = (length * drafting + forward((length + 1) * flops, bytes)) / forward(flops, bytes);
  return expectedTokens(draft.acceptance, length) / time;
}
