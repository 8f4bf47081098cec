// How figures are written: whole numbers, rates, bytes, times. No state, no page.

export const NONE = "–";

const PREFIXES = ["", "k", "M", "G", "T", "P", "E"];

// Three significant digits with an SI prefix: 1.23 M.
export function short(value, unit = "") {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  let size = Math.abs(value), prefix = 0;
  while (size >= 999.5 && prefix < PREFIXES.length - 1) { size /= 1000; prefix += 1; }
  const digits = prefix === 0 && Number.isInteger(value) ? 0 : size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
  const text = (value < 0 ? "−" : "") + size.toFixed(digits);
  const tail = PREFIXES[prefix] + unit;
  return tail ? `${text} ${tail}` : text;
}

// A mark on an axis, as short as it can be.
export function tick(value) {
  const size = Math.abs(value), sign = value < 0 ? "−" : "";
  if (size > 0 && size < 1e-3) return sign + size.toExponential(1).replace(".0", "").replace("e-", "e−");
  const prefix = size < 1000 ? 0 : Math.min(PREFIXES.length - 1, Math.floor(Math.log10(size) / 3 + 1e-9));
  return `${sign}${Number((size / 1000 ** prefix).toPrecision(3))}${prefix ? ` ${PREFIXES[prefix]}` : ""}`;
}

export const perSecond = (value) => short(value, "/s");
export const bytesPerSecond = (value) => short(value, "B/s");
export const bytes = (value) => short(value, "B");

// A total of bytes as it is sent: a decimal string, which may be more than a number holds.
export function exactBytes(text) {
  if (text === undefined || text === null) return NONE;
  const total = BigInt(text);
  let prefix = 0;
  for (let rest = total; rest >= 1000n && prefix < PREFIXES.length - 1; rest /= 1000n) prefix += 1;
  if (prefix === 0) return `${total} B`;
  const thousandths = total / 1000n ** BigInt(prefix - 1);
  return `${(Number(thousandths) / 1000).toFixed(3)} ${PREFIXES[prefix]}B`;
}

// A plain number to some significant digits, small ones as powers of ten.
export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 1e5) return short(value);
  const text = size > 0 && size < 1e-3 ? size.toExponential(digits - 2) : digitsOf(size, digits);
  return (value < 0 && Number(text) !== 0 ? "−" : "") + text.replace("e-", "e−");
}

function digitsOf(size, digits) {
  if (Number.isInteger(size)) return String(size);
  const before = Math.max(1, Math.floor(Math.log10(size)) + 1);
  return size.toFixed(Math.max(0, digits - (size < 1 ? 0 : before)));
}

export const share = (value) => (value === null || value === undefined ? NONE : `${(100 * value).toFixed(0)} %`);

export const percent = (value) => (value === null || value === undefined ? NONE : `${number(100 * value, 2)} %`);

export const whole = (value) =>
  (value === null || value === undefined ? NONE : value.toLocaleString("en").replaceAll(",", " "));

// Seconds as 4 s, 3:07, 2:03:07 or 5 d 2:03.
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  const total = Math.max(0, Math.round(seconds));
  const two = (part) => String(part).padStart(2, "0");
  const days = Math.floor(total / 86400), hours = Math.floor(total / 3600) % 24;
  const minutes = Math.floor(total / 60) % 60;
  if (total < 60) return `${total} s`;
  if (total < 3600) return `${minutes}:${two(total % 60)}`;
  return days ? `${days} d ${hours}:${two(minutes)}` : `${hours}:${two(minutes)}:${two(total % 60)}`;
}

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const MINUTE = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { weekday: "short", day: "numeric" });
const DATED = new Intl.DateTimeFormat("en-GB", {
  day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit",
});

export const clock = (unix) => CLOCK.format(unix * 1000);
export const minute = (unix) => MINUTE.format(unix * 1000);
export const day = (unix) => DAY.format(unix * 1000);
export const dated = (unix) => DATED.format(unix * 1000);

export function when(unix, now) {
  return Math.abs(now - unix) < 43200 ? clock(unix) : dated(unix);
}
