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
    CASE
      WHEN (
        "t0"."score" - "t0"."score"
      ) = 0.0
      THEN (
        (
          (
            (
              (
                (
                  CAST(FLOOR((
                    LEAST(GREATEST("t0"."score", -4096.0), 4096.0) + 4096.0
                  ) * 1099511627776.0) AS BIGINT) % 2147483647
                ) * 48271
              ) + (
                CAST(CAST((
                  CAST(FLOOR((
                    LEAST(GREATEST("t0"."score", -4096.0), 4096.0) + 4096.0
                  ) * 1099511627776.0) AS BIGINT) - (
                    CAST(FLOOR((
                      LEAST(GREATEST("t0"."score", -4096.0), 4096.0) + 4096.0
                    ) * 1099511627776.0) AS BIGINT) % 2147483647
                  )
                ) AS DOUBLE PRECISION) / 2147483647 AS BIGINT) * 69621
              ) + 12345
            ) % 2147483647
          ) * (
            (
              (
                (
                  CAST(FLOOR((
                    LEAST(GREATEST("t0"."score", -4096.0), 4096.0) + 4096.0
                  ) * 1099511627776.0) AS BIGINT) % 2147483647
                ) * 48271
              ) + (
                CAST(CAST((
                  CAST(FLOOR((
                    LEAST(GREATEST("t0"."score", -4096.0), 4096.0) + 4096.0
                  ) * 1099511627776.0) AS BIGINT) - (
                    CAST(FLOOR((
                      LEAST(GREATEST("t0"."score", -4096.0), 4096.0) + 4096.0
                    ) * 1099511627776.0) AS BIGINT) % 2147483647
                  )
                ) AS DOUBLE PRECISION) / 2147483647 AS BIGINT) * 69621
              ) + 12345
            ) % 2147483647
          )
        ) + (
          (
            (
              (
                CAST(FLOOR((
                  LEAST(GREATEST("t0"."score", -4096.0), 4096.0) + 4096.0
                ) * 1099511627776.0) AS BIGINT) % 2147483647
              ) * 48271
            ) + (
              CAST(CAST((
                CAST(FLOOR((
                  LEAST(GREATEST("t0"."score", -4096.0), 4096.0) + 4096.0
                ) * 1099511627776.0) AS BIGINT) - (
                  CAST(FLOOR((
                    LEAST(GREATEST("t0"."score", -4096.0), 4096.0) + 4096.0
                  ) * 1099511627776.0) AS BIGINT) % 2147483647
                )
              ) AS DOUBLE PRECISION) / 2147483647 AS BIGINT) * 69621
            ) + 12345
          ) % 2147483647
        )
      ) % 2147483647 % 5
      ELSE 0
    END AS "fold",
    CAST(CASE
      WHEN "t0"."score" BETWEEN 0.0 AND 1.0
      AND (
        (
          "t0"."score" - "t0"."score"
        ) = 0.0
      )
      AND CAST("t0"."label" AS DOUBLE PRECISION) BETWEEN 0.0 AND 1.0
      AND (
        "t0"."weight" BETWEEN 0.0 AND 1e+100
        AND (
          (
            "t0"."weight" - "t0"."weight"
          ) = 0.0
        )
      )
      THEN CASE
        WHEN "t0"."weight" >= 1e-200
        THEN CAST(CAST(FLOOR(
          LEAST(
            GREATEST(
              (
                LN(
                  CAST(LEAST(GREATEST("t0"."score", 1e-15), 0.999999999999999) AS DOUBLE PRECISION) / (
                    1.0 - LEAST(GREATEST("t0"."score", 1e-15), 0.999999999999999)
                  )
                ) - -17.0
              ) * 20.0,
              -1.0
            ),
            500.0
          )
        ) AS BIGINT) AS INT) + 1
        ELSE -1
      END
      ELSE CASE
        WHEN NOT (
          COALESCE(
            "t0"."score" BETWEEN 0.0 AND 1.0
            AND (
              (
                "t0"."score" - "t0"."score"
              ) = 0.0
            ),
            FALSE
          )
        )
        THEN -2
        WHEN NOT (
          COALESCE(CAST("t0"."label" AS DOUBLE PRECISION) BETWEEN 0.0 AND 1.0, FALSE)
        )
        THEN -3
        WHEN NOT (
          COALESCE(
            "t0"."weight" BETWEEN 0.0 AND 1e+100
            AND (
              (
                "t0"."weight" - "t0"."weight"
              ) = 0.0
            ),
            FALSE
          )
        )
        THEN -4
        ELSE -2
      END
    END AS INT) AS "bin",
    CAST("t0"."label" AS DOUBLE PRECISION) AS "label",
    LN(
      CAST(LEAST(GREATEST("t0"."score", 1e-15), 0.999999999999999) AS DOUBLE PRECISION) / (
        1.0 - LEAST(GREATEST("t0"."score", 1e-15), 0.999999999999999)
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
