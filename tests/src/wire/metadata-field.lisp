;;;; Metadata as header fields, sent and received.

(in-package #:clgrpc.tests.wire)

(defun through-hpack (metadata)
  "Two values: METADATA as the other end would see it, and its field list."
  (let ((encoder (hpack:make-encoder)) (decoder (hpack:make-decoder))
        (buffer (make-buffer)) (list (hpack:make-field-list)))
    (hpack:begin-block encoder buffer)
    (wire:encode-metadata (status:check-metadata metadata) encoder buffer)
    (hpack:decode-block decoder (buffer-octets buffer) (buffer-start buffer) (buffer-end buffer)
                        list)
    (values (wire::fields-metadata (wire::list-custom-fields list #())) list)))

(test metadata-round-trip
  (let ((metadata `(("x-trace" . "abc") ("x-trace" . "def") ("empty" . "")
                    ("blob-bin" . ,(octets-of 0 255 128)) ("none-bin" . ,(octets-of)))))
    (multiple-value-bind (back list) (through-hpack metadata)
      (is (equalp metadata back))
      (is (= (wire:metadata-octets metadata)
             (reduce #'+ (wire::list-custom-fields list #()) :key #'hpack:field-size))))))

(test joined-binary-values
  "Several binary values may be in one field, with padding or without; text that is not base64 is
dropped."
  (is (equalp `(("k-bin" . ,(octets-of 1)) ("k-bin" . ,(octets-of 2 3)))
              (wire::fields-metadata (vector (hpack:string-field "k-bin" "AQ==,AgM")))))
  (is (null (wire::fields-metadata (vector (hpack:string-field "k-bin" "!!"))))))

(test repeated-metadata-is-shared
  "A peer that sends the same fields again causes no new vector."
  (multiple-value-bind (metadata list) (through-hpack '(("x-a" . "1") ("x-b" . "2")))
    (declare (ignore metadata))
    (let ((first (wire::list-custom-fields list #())))
      (is (eq first (wire::list-custom-fields list first)))
      (is (not (eq first (wire::list-custom-fields list (subseq first 0 1))))))))

(test binary-values-that-are-none
  "It is known whether the binary values of metadata are base64 before anybody requests them."
  (flet ((sound-p (&rest pairs)
           (wire:sound-metadata-p (coerce (loop for (name value) in pairs
                                               collect (hpack:string-field name value))
                                         'vector))))
    (is-true (sound-p))
    (is-true (sound-p '("x" "!!!") '("-bin" "!!!") '("x-bins" "!!!") '("a-bin" "AQ")))
    (dolist (value '("" "AQ==" "AQ" "AQ==,AgM" "AQ , AgM" "," "AQ,"))
      (is-true (sound-p (list "k-bin" value)) "~S" value))
    (dolist (value '("!" "A" "AQ=" "AQ,!" "=" "AQ== AQ" "AQ==AQ" "é"))
      (is (not (sound-p '("a-bin" "AQ") (list "k-bin" value))) "~S" value))
    (flet ((joined (count) (format nil "~{~A~^,~}" (make-list count :initial-element "AQ"))))
      (is-true (sound-p (list "k-bin" (joined 16))))
      (is (not (sound-p (list "k-bin" (joined 17))))))))

(test repeated-binary-values-are-decoded-once
  "By HPACK a peer can repeat a long field as one octet. Each call has octets of its own."
  (let* ((field (hpack:string-field "k-bin" "AQ==,AgM"))
         (first (wire::binary-values field)))
    (is (eq first (wire::binary-values field)))
    (destructuring-bind ((name . octets) other) (wire::fields-metadata (vector field))
      (declare (ignore name other))
      (is (equalp (octets-of 1) octets))
      (fill octets 0)
      (is (equalp (octets-of 1) (cdr (first (wire::fields-metadata (vector field)))))))))
