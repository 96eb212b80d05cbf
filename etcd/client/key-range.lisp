;;;; Keys and values are octets; for strings their UTF-8 is used. A range of keys is its first key
;;;; and the key after its last; a single zero octet as the latter means the end of all keys.

(in-package #:clgrpc.etcd)

(deftype text ()
  "The types of a key or a value that users give."
  '(or string octets))

(defun text-octets (text)
  "TEXT, a string or octets, as octets. Signal MISUSE for any other TEXT."
  (typecase text
    (string (string-octets text))
    ((vector octet) (coerce text 'octets))
    (t (misuse "Keys and values are strings or octets, not ~S." text))))

(defun key-octets (key)
  "KEY, a string or octets, as octets. Signal MISUSE if the key is empty."
  (let ((octets (text-octets key)))
    (when (zerop (length octets)) (misuse "A key has at least one octet."))
    octets))

(defun write-key (key stream)
  "Write KEY, octets, to STREAM for people. A key that is not UTF-8 is written with a character for
each octet."
  (write-printable (handler-case (octets-string key)
                     (clgrpc-error () (map 'string #'code-char key)))
                   stream :quoted t :limit 80))

(defun prefix-end (prefix)
  "The first key after all that begin with PREFIX, octets."
  (if-let ((last (position 255 prefix :test #'/= :from-end t)))
    (let ((end (subseq-octets prefix 0 (1+ last))))
      (incf (aref end last))
      end)
    (octets-of 0)))

(defun next-key (key)
  "The first key after KEY, octets."
  (concatenate 'octets key '(0)))

(defun key-before-p (key other)
  "True if KEY comes before OTHER, both octets."
  (let ((at (mismatch key other)))
    (and at
         (< at (length other))
         (or (= at (length key)) (< (aref key at) (aref other at))))))

(defun range-of (prefix from to)
  "Two values: the first key of a range, and its end. The range has all keys that begin with PREFIX;
or FROM and the later keys before TO; or, if TO is nil, FROM and all later keys. Signal MISUSE if
both are given, or neither."
  (cond ((and prefix (or from to)) (misuse "A range has a PREFIX, or FROM and TO, not both."))
        (prefix (let ((octets (text-octets prefix)))
                  (if (zerop (length octets))
                      (values (octets-of 0) (octets-of 0))
                      (values octets (prefix-end octets)))))
        ((or from to) (values (if from (key-octets from) (octets-of 0))
                              (if to (key-octets to) (octets-of 0))))
        (t (misuse "A range has a PREFIX, or FROM or TO. For all keys give the prefix \"\"."))))
