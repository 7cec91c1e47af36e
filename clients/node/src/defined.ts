/** Options without the members that are undefined: those are left out, and do not take the place of a default. */
export function defined<T extends object>(options: T): T {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)) as T;
}
