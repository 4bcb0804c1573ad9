// Stands before the services of KV and D1 and calls their objects once more where a call
// was cut because the object moved (a redeploy, a drain), and where doing it twice does
// no harm. What may have been done already is not done again.
const waits = [50, 100, 200, 400, 800]; // milliseconds before each further try
const moved = (e) => e?.overloaded !== true && (e?.retryable === true || /Network connection lost/.test(String(e?.message ?? e)));

// Reports whether statements only read. What cannot be told in a glance does not.
const reads = (queries) =>
  queries.every(({ sql }) => {
    const text = sql.replace(/^(\s|--[^\n]*(\n|$)|\/\*[\s\S]*?\*\/)+/, "").replace(/[\s;]+$/, "");
    if (text.includes(";")) return false;
    return /^(select|values|explain)\b/i.test(text) || (/^with\b/i.test(text) && !/\b(insert|update|delete|replace)\b/i.test(text));
  });

// A namespace of objects whose methods in may are called again; each of them says
// whether these arguments admit it.
export const again = (namespace, may) => ({
  idFromName: (name) => namespace.idFromName(name),
  get: (id) =>
    new Proxy({}, {
      get: (_, method) => async (...args) => {
        for (let n = 0; ; n++) {
          try {
            return await namespace.get(id)[method](...args);
          } catch (e) {
            if (n === waits.length || !moved(e) || !may[method]?.(...args)) throw e;
            await scheduler.wait(waits[n]);
          }
        }
      },
    }),
});

export const d1 = { run: reads, dump: () => true };
// A large value, which lies beside the database, can be claimed but once.
export const kv = { read: () => true, list: () => true, remove: () => true, write: (_key, _value, blob) => blob === null };
