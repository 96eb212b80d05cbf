;;;; Content types of a protocol: each determines the codec of the messages and the beginning of the
;;;; answer.

(in-package #:clgrpc.web)

(defstruct (form (:copier nil))
  "One of the content types of a protocol."
  (codec nil :type codec :read-only t)  ; the codec of its messages
  (kind :plain :type keyword :read-only t) ; the kind of the body, one of the protocol's kinds
  (heads nil :type heads :read-only t)) ; how its answers begin

(declaim (sb-ext:freeze-type form))

(define-printer (form form)
  "~A, ~(~A~)" (form-codec form) (form-kind form))

(defun make-forms (rows origins)
  "A table from content type to form, of a server with ORIGINS. ROWS are lists of a content type, a
codec, a kind, a keyword, and the header that names the compression of an answer."
  (let ((forms (make-hash-table :test 'equal)))
    (loop for (type codec kind encoding) in rows
          do (setf (gethash type forms)
                   (make-form :codec codec :kind kind
                              :heads (make-heads type encoding (vary-headers origins)))))
    forms))

(defun preparer (rows claim-of)
  "The function PREPARE of a protocol with the content types in ROWS, which are as for MAKE-FORMS.
CLAIM-OF is its claimer, which gets first the forms, the table of the routes, and the origins of the
server."
  (declare (type function claim-of))
  (lambda (server table)
    (let* ((origins (server:server-origins server))
           (forms (make-forms rows origins)))
      (lambda (http-method target fields)
        (funcall claim-of forms table origins http-method target fields)))))

(defun find-form (forms content-type)
  "The form of FORMS for CONTENT-TYPE, the header or nil; nil if no form has it."
  (and content-type
       (or (and (<= (length content-type) +media-type-characters+)
                (gethash content-type forms))
           (values (gethash (media-type content-type) forms)))))
