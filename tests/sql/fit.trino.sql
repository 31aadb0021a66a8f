SELECT
  "t1"."context_0",
  "t1"."context_1",
  "t1"."fold",
  "t1"."bin",
  COUNT(*) AS "count",
  SUM("t1"."weight") AS "weight",
  SUM("t1"."weight" * "t1"."weight") AS "weight_squared",
  SUM("t1"."weight" * "t1"."label") AS "positive",
  SUM("t1"."weight" * "t1"."logit") AS "logit"
FROM (
  SELECT
    "t0"."device" AS "context_0",
    "t0"."position" AS "context_1",
    IF(
      (
        "t0"."score" - "t0"."score"
      ) = CAST(0.0 AS DOUBLE),
      (
        (
          (
            (
              (
                (
                  (
                    CAST(FLOOR(
                      (
                        LEAST(GREATEST("t0"."score", CAST(-4096.0 AS DOUBLE)), CAST(4096.0 AS DOUBLE)) + CAST(4096.0 AS DOUBLE)
                      ) * CAST(1099511627776.0 AS DOUBLE)
                    ) AS BIGINT) % 2147483647
                  ) * 48271
                ) + (
                  CAST(CAST((
                    CAST(FLOOR(
                      (
                        LEAST(GREATEST("t0"."score", CAST(-4096.0 AS DOUBLE)), CAST(4096.0 AS DOUBLE)) + CAST(4096.0 AS DOUBLE)
                      ) * CAST(1099511627776.0 AS DOUBLE)
                    ) AS BIGINT) - (
                      CAST(FLOOR(
                        (
                          LEAST(GREATEST("t0"."score", CAST(-4096.0 AS DOUBLE)), CAST(4096.0 AS DOUBLE)) + CAST(4096.0 AS DOUBLE)
                        ) * CAST(1099511627776.0 AS DOUBLE)
                      ) AS BIGINT) % 2147483647
                    )
                  ) AS DOUBLE) / 2147483647 AS BIGINT) * 69621
                ) + 12345
              ) % 2147483647
            ) * (
              (
                (
                  (
                    CAST(FLOOR(
                      (
                        LEAST(GREATEST("t0"."score", CAST(-4096.0 AS DOUBLE)), CAST(4096.0 AS DOUBLE)) + CAST(4096.0 AS DOUBLE)
                      ) * CAST(1099511627776.0 AS DOUBLE)
                    ) AS BIGINT) % 2147483647
                  ) * 48271
                ) + (
                  CAST(CAST((
                    CAST(FLOOR(
                      (
                        LEAST(GREATEST("t0"."score", CAST(-4096.0 AS DOUBLE)), CAST(4096.0 AS DOUBLE)) + CAST(4096.0 AS DOUBLE)
                      ) * CAST(1099511627776.0 AS DOUBLE)
                    ) AS BIGINT) - (
                      CAST(FLOOR(
                        (
                          LEAST(GREATEST("t0"."score", CAST(-4096.0 AS DOUBLE)), CAST(4096.0 AS DOUBLE)) + CAST(4096.0 AS DOUBLE)
                        ) * CAST(1099511627776.0 AS DOUBLE)
                      ) AS BIGINT) % 2147483647
                    )
                  ) AS DOUBLE) / 2147483647 AS BIGINT) * 69621
                ) + 12345
              ) % 2147483647
            )
          ) + (
            (
              (
                (
                  CAST(FLOOR(
                    (
                      LEAST(GREATEST("t0"."score", CAST(-4096.0 AS DOUBLE)), CAST(4096.0 AS DOUBLE)) + CAST(4096.0 AS DOUBLE)
                    ) * CAST(1099511627776.0 AS DOUBLE)
                  ) AS BIGINT) % 2147483647
                ) * 48271
              ) + (
                CAST(CAST((
                  CAST(FLOOR(
                    (
                      LEAST(GREATEST("t0"."score", CAST(-4096.0 AS DOUBLE)), CAST(4096.0 AS DOUBLE)) + CAST(4096.0 AS DOUBLE)
                    ) * CAST(1099511627776.0 AS DOUBLE)
                  ) AS BIGINT) - (
                    CAST(FLOOR(
                      (
                        LEAST(GREATEST("t0"."score", CAST(-4096.0 AS DOUBLE)), CAST(4096.0 AS DOUBLE)) + CAST(4096.0 AS DOUBLE)
                      ) * CAST(1099511627776.0 AS DOUBLE)
                    ) AS BIGINT) % 2147483647
                  )
                ) AS DOUBLE) / 2147483647 AS BIGINT) * 69621
              ) + 12345
            ) % 2147483647
          )
        ) % 2147483647
      ) % 5,
      0
    ) AS "fold",
    CAST(IF(
      "t0"."score" BETWEEN CAST(0.0 AS DOUBLE) AND CAST(1.0 AS DOUBLE)
      AND (
        (
          "t0"."score" - "t0"."score"
        ) = CAST(0.0 AS DOUBLE)
      )
      AND CAST("t0"."label" AS DOUBLE) BETWEEN CAST(0.0 AS DOUBLE) AND CAST(1.0 AS DOUBLE)
      AND (
        "t0"."weight" BETWEEN CAST(0.0 AS DOUBLE) AND CAST(1e+100 AS DOUBLE)
        AND (
          (
            "t0"."weight" - "t0"."weight"
          ) = CAST(0.0 AS DOUBLE)
        )
      ),
      IF(
        "t0"."weight" >= CAST(1e-200 AS DOUBLE),
        CAST(CAST(FLOOR(
          LEAST(
            GREATEST(
              (
                LN(
                  CAST(LEAST(GREATEST("t0"."score", CAST(1e-15 AS DOUBLE)), CAST(0.999999999999999 AS DOUBLE)) AS DOUBLE) / (
                    CAST(1.0 AS DOUBLE) - LEAST(GREATEST("t0"."score", CAST(1e-15 AS DOUBLE)), CAST(0.999999999999999 AS DOUBLE))
                  )
                ) - CAST(-17.0 AS DOUBLE)
              ) * CAST(20.0 AS DOUBLE),
              CAST(-1.0 AS DOUBLE)
            ),
            CAST(500.0 AS DOUBLE)
          )
        ) AS BIGINT) AS INTEGER) + 1,
        -1
      ),
      CASE
        WHEN NOT (
          COALESCE(
            "t0"."score" BETWEEN CAST(0.0 AS DOUBLE) AND CAST(1.0 AS DOUBLE)
            AND (
              (
                "t0"."score" - "t0"."score"
              ) = CAST(0.0 AS DOUBLE)
            ),
            FALSE
          )
        )
        THEN -2
        WHEN NOT (
          COALESCE(
            CAST("t0"."label" AS DOUBLE) BETWEEN CAST(0.0 AS DOUBLE) AND CAST(1.0 AS DOUBLE),
            FALSE
          )
        )
        THEN -3
        WHEN NOT (
          COALESCE(
            "t0"."weight" BETWEEN CAST(0.0 AS DOUBLE) AND CAST(1e+100 AS DOUBLE)
            AND (
              (
                "t0"."weight" - "t0"."weight"
              ) = CAST(0.0 AS DOUBLE)
            ),
            FALSE
          )
        )
        THEN -4
        ELSE -2
      END
    ) AS INTEGER) AS "bin",
    CAST("t0"."label" AS DOUBLE) AS "label",
    LN(
      CAST(LEAST(GREATEST("t0"."score", CAST(1e-15 AS DOUBLE)), CAST(0.999999999999999 AS DOUBLE)) AS DOUBLE) / (
        CAST(1.0 AS DOUBLE) - LEAST(GREATEST("t0"."score", CAST(1e-15 AS DOUBLE)), CAST(0.999999999999999 AS DOUBLE))
      )
    ) AS "logit",
    "t0"."weight"
  FROM "logs" AS "t0"
) AS "t1"
GROUP BY
  1,
  2,
  3,
  4
