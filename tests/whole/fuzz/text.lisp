;;;; Mutations of texts that know tokens: JSON, text format and .proto sources are all made of
;;;; words, numbers, strings and single characters.

(in-package #:clgrpc.tests.fuzz)

(defun word-octet-p (octet)
  (or (<= 48 octet 57) (<= 65 octet 90) (<= 97 octet 122) (= octet 95) (>= octet 128)))

(defun space-octet-p (octet)
  (member octet '(32 10 9 13)))

(defun token-end (octets start)
  (let ((first (aref octets start)) (end (length octets)))
    (flet ((stretch (predicate)
             (or (position-if-not predicate octets :start start) end)))
      (cond ((word-octet-p first) (stretch #'word-octet-p))
            ((space-octet-p first) (stretch #'space-octet-p))
            ((member first '(34 39))
             (loop for i from (1+ start) below end
                   do (cond ((= (aref octets i) 92) (incf i))
                            ((= (aref octets i) first) (return (1+ i))))
                   finally (return end)))
            (t (1+ start))))))

(defun text-tokens (octets)
  "The tokens of OCTETS, a text, as a simple vector of octets."
  (coerce (loop with start = 0
                while (< start (length octets))
                collect (let ((end (token-end octets start)))
                          (prog1 (subseq octets start end) (setf start end))))
          'simple-vector))

(defun join-tokens (tokens)
  (let ((octets (make-octets (reduce #'+ tokens :key #'length))) (at 0))
    (map nil (lambda (token)
               (replace octets token :start1 at)
               (incf at (length token)))
         tokens)
    octets))

(defparameter *token-texts*
  '("{" "}" "[" "]" "(" ")" "<" ">" ":" ";" "," "." "/" "-" "\"" "'" "\\" "=" "#" "//" "/*" "*/" "?"
    "0" "1" "-1" "00" "08" "0x" "0xFFFFFFFFFFFFFFFF" "18446744073709551616" "-9223372036854775809"
    "2147483648" "-2147483649" "1e309" "1e-400" "1E+2" ".5" "1." "5f" "1e99999999999" "inf" "-inf"
    "nan" "NaN" "Infinity" "-Infinity" "null" "true" "false" "True" "t" "\"\"" "''" "\"\\u0000\""
    "\"\\ud800\"" "\"\\udc00\\ud800\"" "\"\\ud83d\\ude00\"" "\"\\xff\"" "\"\\377\""
    "\"\\U00110000\"" "\"\\z\"" "\"1.5s\"" "\"-1s\"" "\"1970-01-01T00:00:00Z\""
    "\"9999-99-99T99:99:99Z\"" "\"@type\"" "\"type.googleapis.com/google.protobuf.Any\""
    "\"AQID\"" "\"AQ==\"" "\"a,b.c\""
    "optional" "required" "repeated" "message" "enum" "oneof" "extend" "extensions" "reserved" "map"
    "group" "syntax" "edition" "import" "public" "weak" "package" "option" "service" "rpc" "returns"
    "stream" "to" "max" "int32" "string" "bytes" "default" "packed" "json_name" "export" "local"))

(defparameter *tokens*
  (map 'simple-vector #'string-octets *token-texts*))

(defun mutate-tokens (tokens others)
  "TOKENS with one change; OTHERS is a vector of tokens to put in."
  (if (zerop (length tokens))
      (vector (pick *tokens*))
      (let* ((position (below (length tokens)))
             (end (min (length tokens) (+ position (1+ (below 6)))))
             (part (subseq tokens position end)))
        (flet ((splice (start end &rest parts)
                 (apply #'concatenate 'simple-vector
                        (subseq tokens 0 start) (append parts (list (subseq tokens end))))))
          (one-of
            (splice position end)
            (splice position (1+ position))
            (splice position position part)
            (splice position (1+ position) (vector (pick others)))
            (splice position position (vector (pick *tokens*)))
            (splice position (1+ position) (vector (pick *tokens*)))
            (let ((to (below (length tokens))))
              (let ((copy (copy-seq tokens)))
                (rotatef (svref copy position) (svref copy to))
                copy))
            (splice position position
                    (make-array (if (chance-p 8) (below 300) (below 5))
                                :initial-element (pick *tokens*)))
            (splice position (1+ position)
                    (vector (mutate-octets (svref tokens position) tokens))))))))
