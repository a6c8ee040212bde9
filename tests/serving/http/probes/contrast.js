// The least contrast of text on tokens, of tokens' edges (which need two thirds of it), and of other text.
const luminance = ([r, g, b]) => {
  const part = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
};
const parse = (text) => text.match(/[\d.]+/g).map(Number);
const over = ([r, g, b, a = 1], under) => [r, g, b].map((v, i) => a * v + (1 - a) * under[i]);
const ratio = (one, two) => {
  const [low, high] = [luminance(one), luminance(two)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};
const paper = parse(getComputedStyle(document.body).backgroundColor);
const ink = parse(getComputedStyle(document.body).color);
const found = [];
for (let index = 0; index < 6; index++) {
  const token = document.createElement('span');
  token.className = 'token g' + index;
  document.querySelector('#turns').append(token);
  found.push(ratio(ink, over(parse(getComputedStyle(token).backgroundColor), paper)));
  found.push(1.5 * ratio(parse(getComputedStyle(token).boxShadow), paper));
  token.remove();
}
for (const name of ['#levels', '.soft', '#hint', 'label'])
  found.push(ratio(parse(getComputedStyle(document.querySelector(name)).color), paper));
const send = getComputedStyle(document.querySelector('#send'));
found.push(ratio(parse(send.color), parse(send.backgroundColor)));
return Math.min(...found);
