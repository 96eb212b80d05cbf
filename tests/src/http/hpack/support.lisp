;;;; Common code of this suite: octets in hexadecimal, blocks to lists of pairs and back, a
;;;; reproducible random state, and a measure of allocation.

(in-package #:clgrpc.tests.hpack)

(def-suite :clgrpc.hpack :description "RFC 7541: header compression.")

(defun hex (text)
  "The octets that the hexadecimal digits of TEXT represent; spaces are ignored."
  (let ((digits (remove #\Space text)))
    (coerce (loop for i from 0 below (length digits) by 2
                  collect (parse-integer digits :start i :end (+ i 2) :radix 16))
            'octets)))

(defun decode (decoder octets &key (list (make-field-list)))
  "Decode the block OCTETS and return LIST."
  (decode-block decoder octets 0 (length octets) list)
  list)

(defun pair (field)
  "FIELD as (name value) or, if sensitive, (name value :never)."
  (list* (field-name-string field) (field-value-string field)
         (when (field-sensitive-p field) '(:never))))

(defun pairs (list)
  "The fields of a FIELD-LIST as PAIR gives them."
  (let ((pairs '()))
    (do-fields (field list (nreverse pairs)) (push (pair field) pairs))))

(defun decoded (text &key (decoder (make-decoder)))
  "The pairs of the block of hexadecimal TEXT."
  (pairs (decode decoder (hex text))))

(defun encode (encoder fields &key (mode :index))
  "The octets of a block of FIELDS, each a field or (name value)."
  (let ((buffer (make-buffer :size 16)))
    (begin-block encoder buffer)
    (dolist (field fields)
      (encode-field encoder buffer
                    (if (consp field) (string-field (first field) (second field)) field)
                    mode))
    (subseq-octets (buffer-octets buffer) (buffer-start buffer) (buffer-end buffer))))

(defun call-with-random (name function)
  (let ((seed (or (let ((text (sb-ext:posix-getenv "CLGRPC_SEED")))
                    (and text (parse-integer text)))
                  (random (expt 2 32) (make-random-state t)))))
    (format t "~&; ~(~A~): CLGRPC_SEED=~D~%" name seed)
    (let ((*random-state* (sb-ext:seed-random-state seed)))
      (funcall function))))

(defmacro with-random ((name) &body body)
  "Run BODY with a random state whose seed is printed beside NAME."
  `(call-with-random ',name (lambda () ,@body)))

(defun random-octets (length &key (limit 256))
  "LENGTH random octets below LIMIT."
  (let ((octets (make-octets length)))
    (map-into octets (lambda () (random limit)))))

(defun octets-per-run (function &key (runs 20000))
  "How many octets FUNCTION allocates per call, over RUNS calls after as many to warm up: the least
of three measurements, since other threads' allocation counts as well."
  (dotimes (i runs) (funcall function))
  (loop repeat 3
        minimize (let ((before (sb-ext:get-bytes-consed)))
                   (dotimes (i runs) (funcall function))
                   (/ (- (sb-ext:get-bytes-consed) before) runs))))
