;;;; The dynamic table alone: numbering, growth of the ring, eviction.

(in-package #:clgrpc.tests.hpack)

(defun numbered (i)
  (string-field (format nil "n~D" i) "v"))

(defun table-names (table)
  "The names in TABLE by rising index on the wire, that is newest first."
  (loop for index from 62 to (+ 61 (hpack::table-count table))
        collect (field-name-string (hpack::find-entry table index))))

(test table-order-and-growth
  (let ((table (make-decoder :table-octets 4096)))
    (dotimes (i 60) (is (eq t (hpack::insert-entry table (numbered i)))))
    (is (= 60 (hpack::table-count table)))
    (is (equal (loop for i from 59 downto 0 collect (format nil "n~D" i)) (table-names table)))
    (is (null (hpack::find-entry table 122)))
    (is (null (hpack::find-entry table 0)))))

(test table-eviction
  "A table with room for three entries keeps the last three, wherever the ring begins."
  (let ((table (make-decoder :table-octets (* 3 (field-size (numbered 10))))))
    (loop for i from 10 below 99
          do (hpack::insert-entry table (numbered i))
             (is (equal (loop for j from i downto (max 10 (- i 2)) collect (format nil "n~D" j))
                        (table-names table)))
             (is (= (hpack::table-octets table)
                    (* (hpack::table-count table) (field-size (numbered 10))))))
    (is (= 4 (length (hpack::table-ring table))))
    (is (= 3 (count-if #'identity (hpack::table-ring table))) "evicted entries are let go")))

(test table-resize
  (let ((table (make-decoder :table-octets 4096))
        (size (field-size (numbered 1))))
    (dotimes (i 10) (hpack::insert-entry table (numbered i)))
    (hpack::resize-table table (1- (* 3 size)))
    (is (equal '("n9" "n8") (table-names table)))
    (hpack::resize-table table 0)
    (is (equal '() (table-names table)))
    (is (null (hpack::insert-entry table (numbered 1))))
    (hpack::resize-table table 4096)
    (is (eq t (hpack::insert-entry table (numbered 2))))
    (is (equal '("n2") (table-names table)))))

(test entry-larger-than-the-table
  "Such an entry empties the table and is no error (RFC 7541 section 4.4)."
  (let ((table (make-decoder :table-octets 100)))
    (hpack::insert-entry table (numbered 1))
    (is (null (hpack::insert-entry table (string-field "big" (format nil "~100D" 1)))))
    (is (= 0 (hpack::table-count table) (hpack::table-octets table)))))
