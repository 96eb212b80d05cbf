;;;; The vector files of tests/vectors/hpack: reading them, and all examples of RFC 7541 appendix C
;;;; through decoder and encoder.

(in-package #:clgrpc.tests.hpack)

(defun words (line &key (limit nil))
  "The words of LINE, at most LIMIT, the last of which is then the whole rest."
  (loop with start = 0
        for from = (position #\Space line :start start :test-not #'char=)
        while from
        collect (let ((end (if (eql limit 1) nil (position #\Space line :start from))))
                  (setf start (or end (length line)))
                  (when limit (decf limit))
                  (subseq line from end))))

(defun call-with-vector-lines (file function)
  (with-open-file (stream (asdf:system-relative-pathname
                           "clgrpc" (concatenate 'string "tests/vectors/hpack/" file)))
    (loop for line = (read-line stream nil)
          while line
          do (unless (or (zerop (length line)) (char= #\# (char line 0)))
               (funcall function line)))))

(defmacro do-vector-lines ((line file) &body body)
  "Run BODY with LINE bound to each line of the vector FILE that is neither a comment nor empty."
  `(call-with-vector-lines ,file (lambda (,line) ,@body)))

(defstruct (example (:copier nil))
  "A block of a vector file: fields as PAIRS gives them, entries newest first."
  section octets connection limit (fields '()) (entries '()) size)

(defun read-examples (file)
  "The EXAMPLEs of FILE in order; those of one connection share the string CONNECTION."
  (let ((examples '()) (connection nil) (limit nil))
    (do-vector-lines (line file)
      (destructuring-bind (key . rest) (words line :limit 2)
        (flet ((pair () (let ((words (words (first rest) :limit 2)))
                          (list (first words) (or (second words) ""))))
               (is-p (name) (string= name key)))
          (cond ((is-p "connection")
                 (setf connection (first (words (first rest)))
                       limit (parse-integer (second (words (first rest))))))
                ((is-p "block")
                 (destructuring-bind (section octets) (words (first rest))
                   (push (make-example :section section :octets (hex octets)
                                       :connection connection :limit limit)
                         examples)))
                ((is-p "field") (push (pair) (example-fields (first examples))))
                ((is-p "never") (push (append (pair) '(:never)) (example-fields (first examples))))
                ((is-p "entry") (push (pair) (example-entries (first examples))))
                ((is-p "size")
                 (setf (example-size (first examples)) (parse-integer (first rest))))))))
    (dolist (example examples (nreverse examples))
      (setf (example-fields example) (reverse (example-fields example))
            (example-entries example) (reverse (example-entries example))))))

(defun entries (table)
  "The entries of a dynamic TABLE as pairs, newest first."
  (loop for index from 62 to (+ 61 (hpack::table-count table))
        for field = (hpack::find-entry table index)
        collect (list (field-name-string field) (field-value-string field))))

(defun check-table (table example)
  (is (equal (example-entries example) (entries table)) "~A" (example-section example))
  (is (= (example-size example) (hpack::table-octets table)) "~A" (example-section example)))

(test appendix-c-decoded
  (let ((connection nil) (decoder nil) (count 0))
    (dolist (example (read-examples "appendix-c.txt"))
      (unless (eq connection (example-connection example))
        (setf connection (example-connection example)
              decoder (make-decoder :table-octets (example-limit example))))
      (is (equal (example-fields example) (pairs (decode decoder (example-octets example))))
          "~A" (example-section example))
      (check-table decoder example)
      (incf count))
    (is (= 16 count))))

(test appendix-c-encoded
  "The encoder writes the examples with Huffman coding octet for octet, except C.6.2, where one
string is no shorter with it and stays plain."
  (let ((connection nil) (encoder nil) (count 0))
    (dolist (example (read-examples "appendix-c.txt"))
      (when (member (example-connection example) '("C.4" "C.6") :test #'string=)
        (unless (eq connection (example-connection example))
          (setf connection (example-connection example)
                encoder (make-encoder :table-octets (example-limit example)))
          (begin-block encoder (make-buffer))) ; the size update is not in the example
        (is (equalp (if (string= "C.6.2" (example-section example))
                        (hex "4803333037c1c0bf")
                        (example-octets example))
                    (encode encoder (example-fields example)))
            "~A" (example-section example))
        (check-table encoder example)
        (incf count)))
    (is (= 6 count))))

(test appendix-c-integers
  (let ((count 0))
    (do-vector-lines (line "appendix-c.txt")
      (when (string= "integer" (first (words line)))
        (destructuring-bind (section bits value octets) (rest (words line))
          (let ((mask (1- (ash 1 (parse-integer bits))))
                (value (parse-integer value))
                (octets (hex octets))
                (buffer (make-buffer)))
            (is (equal (list value (length octets))
                       (multiple-value-list
                        (hpack::read-prefixed-integer octets 0 (length octets) mask)))
                "~A" section)
            (hpack::append-integer buffer value mask 0)
            (is (equalp octets (subseq (buffer-octets buffer) 0 (buffer-end buffer))) "~A" section)
            (incf count)))))
    (is (= 3 count))))
