WITH isolayer_cells AS (SELECT * FROM (VALUES
(CAST(0 AS BIGINT),CAST(-2.0E0 AS DOUBLE),CAST(2.5E0 AS DOUBLE),CAST(1.5E0 AS DOUBLE)),
(1,-3.0E0,3.0E0,1.5E0),
(2,-2.5E0,2.75E0,2.25E0),
(3,-1.0E0,1.75E0,3.25E0)
) AS t(cell, v, r0, r1)),
isolayer_level_1 AS (SELECT * FROM (VALUES
(CAST(1 AS BIGINT),CAST('tv' AS VARCHAR)),
(2,'web')
) AS t(curve, k)),
isolayer_level_2 AS (SELECT * FROM (VALUES
(CAST(3 AS BIGINT),CAST(2 AS BIGINT),CAST(0 AS BIGINT))
) AS t(curve, parent, k)),
isolayer_rows AS (
  SELECT
    isolayer_source."id",
    isolayer_source."score",
    isolayer_source."device",
    isolayer_source."position",
    CAST(1E0 * CASE WHEN regexp_full_match(typeof(isolayer_source."score"), '^(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|DECIMAL.*|"NULL"|FLOAT|DOUBLE)$') THEN isolayer_source."score" ELSE error('column score: expected numbers, got ' || typeof(isolayer_source."score") || '; convert it') END AS DOUBLE) AS isolayer_score,
    CASE WHEN regexp_full_match(typeof(isolayer_source."device"), '^(VARCHAR|ENUM.*|"NULL")$') THEN isolayer_source."device" ELSE error('context device: expected strings as when fitted, got ' || typeof(isolayer_source."device") || '; convert the column') END AS isolayer_context_1,
    CASE WHEN regexp_full_match(typeof(isolayer_source."position"), '^(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|DECIMAL.*|"NULL"|FLOAT|DOUBLE)$') THEN isolayer_source."position" ELSE error('context position: expected integers as when fitted, got ' || typeof(isolayer_source."position") || '; convert the column') END AS isolayer_context_2
  FROM (SELECT COLUMNS('^(?:id|score|device|position)$') FROM logs) AS isolayer_source
),
isolayer_marked AS (
  SELECT
    *,
    CASE WHEN isolayer_score - isolayer_score = 0E0 THEN 1 ELSE 0 END AS isolayer_usable,
    CASE WHEN isolayer_score - isolayer_score = 0E0 THEN isolayer_score ELSE 0E0 END AS isolayer_logit
  FROM isolayer_rows
),
isolayer_placed AS (
  SELECT
    *,
    (LEAST(GREATEST(isolayer_logit, -2.0E0), 2.0E0) - -2.0E0) * 0.5E0 AS isolayer_place,
    isolayer_logit - LEAST(GREATEST(isolayer_logit, -2.0E0), 2.0E0) AS isolayer_outside
  FROM isolayer_marked
),
isolayer_grouped AS (
  SELECT
    *,
    CAST(FLOOR(LEAST(isolayer_place / 2.0E0, 0.5E0)) AS BIGINT) AS isolayer_group
  FROM isolayer_placed
),
isolayer_found AS (
  SELECT r.*, COALESCE(l2.curve, l1.curve, 0) * 1 + r.isolayer_group AS isolayer_cell
  FROM isolayer_grouped AS r
  LEFT JOIN isolayer_level_1 AS l1 ON l1.k = r.isolayer_context_1
  LEFT JOIN isolayer_level_2 AS l2 ON l2.k = r.isolayer_context_2 AND l2.parent = l1.curve
)
SELECT
  r."id",
  r."score",
  r."device",
  r."position",
  CASE WHEN r.isolayer_usable = 1 THEN 1E0 / (1E0 + EXP(-LEAST(GREATEST(c.v + LEAST((r.isolayer_place - r.isolayer_group * 2.0E0), 1E0) * c.r0 + GREATEST((r.isolayer_place - r.isolayer_group * 2.0E0) - 1.0E0, 0E0) * c.r1 + r.isolayer_outside, -700.0E0), 36.0E0))) END AS "calibrated_prob"
FROM isolayer_found AS r
INNER JOIN isolayer_cells AS c ON c.cell = r.isolayer_cell
