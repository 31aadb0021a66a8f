SELECT
  `t1`.`context_0`,
  `t1`.`context_1`,
  `t1`.`fold`,
  `t1`.`bin`,
  COUNT(*) AS `count`,
  SUM(`t1`.`weight`) AS `weight`,
  SUM(`t1`.`weight` * `t1`.`weight`) AS `weight_squared`,
  SUM(`t1`.`weight` * `t1`.`label`) AS `positive`,
  SUM(`t1`.`weight` * `t1`.`logit`) AS `logit`
FROM (
  SELECT
    `t0`.`device` AS `context_0`,
    `t0`.`position` AS `context_1`,
    IF(
      (
        `t0`.`score` - `t0`.`score`
      ) = 0.0,
      MOD(
        MOD(
          (
            (
              MOD(
                (
                  (
                    MOD(
                      CAST(FLOOR((
                        LEAST(GREATEST(`t0`.`score`, -4096.0), 4096.0) + 4096.0
                      ) * 1099511627776.0) AS INT64),
                      2147483647
                    )
                  ) * 48271
                ) + (
                  CAST(TRUNC(
                    ieee_divide(
                      CAST(FLOOR((
                        LEAST(GREATEST(`t0`.`score`, -4096.0), 4096.0) + 4096.0
                      ) * 1099511627776.0) AS INT64) - (
                        MOD(
                          CAST(FLOOR((
                            LEAST(GREATEST(`t0`.`score`, -4096.0), 4096.0) + 4096.0
                          ) * 1099511627776.0) AS INT64),
                          2147483647
                        )
                      ),
                      2147483647
                    )
                  ) AS INT64) * 69621
                ) + 12345,
                2147483647
              )
            ) * (
              MOD(
                (
                  (
                    MOD(
                      CAST(FLOOR((
                        LEAST(GREATEST(`t0`.`score`, -4096.0), 4096.0) + 4096.0
                      ) * 1099511627776.0) AS INT64),
                      2147483647
                    )
                  ) * 48271
                ) + (
                  CAST(TRUNC(
                    ieee_divide(
                      CAST(FLOOR((
                        LEAST(GREATEST(`t0`.`score`, -4096.0), 4096.0) + 4096.0
                      ) * 1099511627776.0) AS INT64) - (
                        MOD(
                          CAST(FLOOR((
                            LEAST(GREATEST(`t0`.`score`, -4096.0), 4096.0) + 4096.0
                          ) * 1099511627776.0) AS INT64),
                          2147483647
                        )
                      ),
                      2147483647
                    )
                  ) AS INT64) * 69621
                ) + 12345,
                2147483647
              )
            )
          ) + (
            MOD(
              (
                (
                  MOD(
                    CAST(FLOOR((
                      LEAST(GREATEST(`t0`.`score`, -4096.0), 4096.0) + 4096.0
                    ) * 1099511627776.0) AS INT64),
                    2147483647
                  )
                ) * 48271
              ) + (
                CAST(TRUNC(
                  ieee_divide(
                    CAST(FLOOR((
                      LEAST(GREATEST(`t0`.`score`, -4096.0), 4096.0) + 4096.0
                    ) * 1099511627776.0) AS INT64) - (
                      MOD(
                        CAST(FLOOR((
                          LEAST(GREATEST(`t0`.`score`, -4096.0), 4096.0) + 4096.0
                        ) * 1099511627776.0) AS INT64),
                        2147483647
                      )
                    ),
                    2147483647
                  )
                ) AS INT64) * 69621
              ) + 12345,
              2147483647
            )
          ),
          2147483647
        ),
        5
      ),
      0
    ) AS `fold`,
    CAST(IF(
      `t0`.`score` BETWEEN 0.0 AND 1.0
      AND (
        (
          `t0`.`score` - `t0`.`score`
        ) = 0.0
      )
      AND CAST(`t0`.`label` AS FLOAT64) BETWEEN 0.0 AND 1.0
      AND (
        `t0`.`weight` BETWEEN 0.0 AND 1e+100
        AND (
          (
            `t0`.`weight` - `t0`.`weight`
          ) = 0.0
        )
      ),
      IF(
        `t0`.`weight` >= 1e-200,
        CAST(CAST(FLOOR(
          LEAST(
            GREATEST(
              (
                LN(
                  ieee_divide(
                    LEAST(GREATEST(`t0`.`score`, 1e-15), 0.999999999999999),
                    1.0 - LEAST(GREATEST(`t0`.`score`, 1e-15), 0.999999999999999)
                  )
                ) - -17.0
              ) * 20.0,
              -1.0
            ),
            500.0
          )
        ) AS INT64) AS INT64) + 1,
        -1
      ),
      CASE
        WHEN NOT (
          COALESCE(
            `t0`.`score` BETWEEN 0.0 AND 1.0
            AND (
              (
                `t0`.`score` - `t0`.`score`
              ) = 0.0
            ),
            FALSE
          )
        )
        THEN -2
        WHEN NOT (
          COALESCE(CAST(`t0`.`label` AS FLOAT64) BETWEEN 0.0 AND 1.0, FALSE)
        )
        THEN -3
        WHEN NOT (
          COALESCE(
            `t0`.`weight` BETWEEN 0.0 AND 1e+100
            AND (
              (
                `t0`.`weight` - `t0`.`weight`
              ) = 0.0
            ),
            FALSE
          )
        )
        THEN -4
        ELSE -2
      END
    ) AS INT64) AS `bin`,
    CAST(`t0`.`label` AS FLOAT64) AS `label`,
    LN(
      ieee_divide(
        LEAST(GREATEST(`t0`.`score`, 1e-15), 0.999999999999999),
        1.0 - LEAST(GREATEST(`t0`.`score`, 1e-15), 0.999999999999999)
      )
    ) AS `logit`,
    `t0`.`weight`
  FROM `logs` AS `t0`
) AS `t1`
GROUP BY
  1,
  2,
  3,
  4
