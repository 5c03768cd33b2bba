// A form from a JSON Schema, as far as a form can say it: the fields of an object, and an input to begin with.

export interface Field {
  name: string;
  type: string;
  required: boolean;
  description?: string | undefined;
  options?: string[] | undefined;
}

interface Schema {
  type?: string | string[];
  properties?: Record<string, Schema>;
  required?: string[];
  enum?: unknown[];
  default?: unknown;
  description?: string;
  anyOf?: Schema[];
  items?: Schema;
}

const typesOf = (schema: Schema): string[] =>
  schema.anyOf ? schema.anyOf.flatMap(typesOf) : [schema.type ?? "any"].flat();

/** The type beside null; "any" where a form cannot say it. */
const plainType = (schema: Schema): string => {
  const types = new Set(typesOf(schema).filter((type) => type !== "null"));
  return types.size === 1 ? ([...types][0] ?? "any") : "any";
};

export function fieldsOf(schema: unknown): Field[] {
  const { properties = {}, required = [] } = (schema ?? {}) as Schema;
  return Object.entries(properties).map(([name, field]) => ({
    name,
    type: plainType(field),
    required: required.includes(name),
    description: field.description,
    options: field.enum?.every((option) => typeof option === "string") ? (field.enum as string[]) : undefined,
  }));
}

/** The least that fits: required fields, with their defaults or empty values. */
export function exampleOf(schema: unknown): Record<string, unknown> {
  const { properties = {}, required = [] } = (schema ?? {}) as Schema;
  const empty: Record<string, unknown> = { string: "", integer: 0, number: 0, boolean: false, array: [], object: {} };
  return Object.fromEntries(
    Object.entries(properties)
      .filter(([name, field]) => required.includes(name) || field.default !== undefined)
      .map(([name, field]) => [name, field.default ?? field.enum?.[0] ?? empty[plainType(field)] ?? null]),
  );
}
