WITH `isolayer_keys` AS (SELECT * FROM UNNEST([STRUCT(CAST('tv' AS STRING) AS `device`, CAST(NULL AS INT64) AS `position`, CAST(1 AS INT64) AS `isolayer_level`, CAST(1 AS INT64) AS `isolayer_base`),
('web',NULL,1,2),
('web',0,2,3)])), `isolayer_cells` AS (SELECT * FROM UNNEST([STRUCT(CAST(0 AS INT64) AS `isolayer_at`, CAST(-2.0E0 AS FLOAT64) AS `isolayer_v`, CAST(2.5E0 AS FLOAT64) AS `isolayer_r0`, CAST(1.5E0 AS FLOAT64) AS `isolayer_r1`),
(1,-3.0E0,3.0E0,1.5E0),
(2,-2.5E0,2.75E0,2.25E0),
(3,-1.0E0,1.75E0,3.25E0)]))
SELECT
  `t13`.`id`,
  `t13`.`score`,
  `t13`.`device`,
  `t13`.`position`,
  CASE
    WHEN (
      `t13`.`score` - `t13`.`score`
    ) = 0.0
    THEN 1.0 / (
      1.0 + EXP(
        -(
          LEAST(
            GREATEST(
              `t3`.`isolayer_v` + (
                LEAST(`t13`.`isolayer_into`, 1.0) * `t3`.`isolayer_r0`
              ) + (
                GREATEST(`t13`.`isolayer_into` - 1.0, 0.0) * `t3`.`isolayer_r1`
              ) + `t13`.`isolayer_outside`,
              -700.0
            ),
            36.0
          )
        )
      )
    )
    ELSE CAST(NULL AS FLOAT64)
  END AS `calibrated_prob`
FROM (
  SELECT
    `t11`.`id`,
    `t11`.`score`,
    `t11`.`device`,
    `t11`.`position`,
    `t11`.`isolayer_group`,
    `t11`.`isolayer_into`,
    `t11`.`isolayer_outside`,
    `t11`.`isolayer_base_1`,
    `t11`.`isolayer_base_2`,
    COALESCE(`t11`.`isolayer_base_2`, `t11`.`isolayer_base_1`, 0) + `t11`.`isolayer_group` AS `isolayer_cell`
  FROM (
    SELECT
      `t10`.`id`,
      `t10`.`score`,
      `t10`.`device`,
      `t10`.`position`,
      `t10`.`isolayer_group`,
      `t10`.`isolayer_into`,
      `t10`.`isolayer_outside`,
      `t6`.`isolayer_base_1`,
      `t7`.`isolayer_base_2`
    FROM (
      SELECT
        `t8`.`id`,
        `t8`.`score`,
        `t8`.`device`,
        `t8`.`position`,
        `t8`.`isolayer_group`,
        `t8`.`isolayer_into` - (
          `t8`.`isolayer_group` * 2
        ) AS `isolayer_into`,
        `t8`.`isolayer_outside`
      FROM (
        SELECT
          `t1`.`id`,
          `t1`.`score`,
          `t1`.`device`,
          `t1`.`position`,
          CAST(CASE
            WHEN (
              `t1`.`score` - `t1`.`score`
            ) = 0.0
            THEN CAST(FLOOR(LEAST((
              LEAST(GREATEST(`t1`.`score`, -2.0), 2.0) - -2.0
            ) * 0.5 * 0.5, 0.5)) AS INT64)
            ELSE 0
          END AS INT64) AS `isolayer_group`,
          (
            LEAST(GREATEST(`t1`.`score`, -2.0), 2.0) - -2.0
          ) * 0.5 AS `isolayer_into`,
          `t1`.`score` - LEAST(GREATEST(`t1`.`score`, -2.0), 2.0) AS `isolayer_outside`
        FROM logs AS `t1`
      ) AS `t8`
    ) AS `t10`
    LEFT OUTER JOIN (
      SELECT
        `t2`.`device` AS `isolayer_key_0`,
        `t2`.`isolayer_base` AS `isolayer_base_1`
      FROM `isolayer_keys` AS `t2`
      WHERE
        `t2`.`isolayer_level` = 1
    ) AS `t6`
      ON `t10`.`device` = `t6`.`isolayer_key_0`
    LEFT OUTER JOIN (
      SELECT
        `t2`.`device` AS `isolayer_key_0`,
        `t2`.`position` AS `isolayer_key_1`,
        `t2`.`isolayer_base` AS `isolayer_base_2`
      FROM `isolayer_keys` AS `t2`
      WHERE
        `t2`.`isolayer_level` = 2
    ) AS `t7`
      ON `t10`.`device` = `t7`.`isolayer_key_0`
      AND `t10`.`position` = `t7`.`isolayer_key_1`
  ) AS `t11`
) AS `t13`
INNER JOIN `isolayer_cells` AS `t3`
  ON `t13`.`isolayer_cell` = `t3`.`isolayer_at`
