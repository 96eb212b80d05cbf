;;;; The one condition of HPACK. After a header block that cannot be decoded, the dynamic tables of
;;;; the two ends differ for good. So there is no restart: the connection ends with
;;;; COMPRESSION_ERROR (RFC 9113 section 4.3).

(in-package #:clgrpc.hpack)

(define-condition hpack-error (clgrpc-error)
  ((text :initarg :text :reader hpack-error-text) ; the fault
   ;; an index into the octets that were given
   (position :initarg :position :reader hpack-error-position))
  (:report (lambda (condition stream)
             (format stream "Bad header block at octet ~D: ~A."
                     (hpack-error-position condition) (hpack-error-text condition))))
  (:documentation "The peer sent a header block that RFC 7541 forbids. TEXT describes the fault;
POSITION is its place, an index into the octet vector given to DECODE-BLOCK. After this error the
decoder cannot be used again, and the connection must end with COMPRESSION_ERROR."))

(document-functions
  hpack-error-text "The error in the header block, as text."
  hpack-error-position "The place of the fault: an index into the octet vector given to
DECODE-BLOCK.")

(declaim (ftype (function (index string &rest t) nil) bad-block))
(defun bad-block (position control &rest arguments)
  (error 'hpack-error :position position :text (format nil "~?" control arguments)))
