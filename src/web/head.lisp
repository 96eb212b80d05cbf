;;;; How answers begin. The constant part of a head is written once; metadata, and the headers for
;;;; pages of other origins, are added to it.

(in-package #:clgrpc.web)

(defstruct (heads (:constructor %make-heads (headers plain compressed)) (:copier nil))
  "The heads of good answers of one content type."
  (headers '() :type list :read-only t) ; the headers that errors have as well, an alist
  (plain nil :type exchange:answer-head :read-only t) ; the head of answers that are not compressed
  (compressed '() :type list :read-only t) ; an alist from encoding to head
  ;; heads that OTHER-HEAD has made, with their status and content type: lists of the three. If two
  ;; threads add one at the same time, one is lost
  (others '() :type list))

(declaim (sb-ext:freeze-type heads))

(defmethod print-object ((heads heads) stream)
  (print-unreadable-object (heads stream :type t :identity t)))

(defun make-heads (content-type encoding-header headers)
  "The HEADS of good answers with CONTENT-TYPE and HEADERS, an alist, which errors have as well;
their header ENCODING-HEADER, a string, names the compression."
  (let ((more headers) (headers (acons "content-type" content-type headers)))
    (%make-heads
     more
     (exchange:make-answer-head 200 headers)
     (loop for name in '(:gzip :deflate)
           collect (cons (encoding:encoding-of-name name)
                         (exchange:make-answer-head
                          200 (acons encoding-header (string-downcase name) headers)))))))

(defun heads-head (heads encoding)
  "The head of HEADS for an answer that is compressed by ENCODING; nil if HEADS have none."
  (if encoding
      (cdr (assoc encoding (heads-compressed heads)))
      (heads-plain heads)))

(defconstant +most-other-heads+ 32
  "The maximum number of other heads that are kept. Errors have fewer statuses, but handlers choose
content types.")

(defun other-head (heads http-status content-type)
  "The head of an answer with HTTP-STATUS and CONTENT-TYPE for which HEADS have no head of their
own."
  (let ((others (heads-others heads)))
    (loop for (status type head) in others
          when (and (eql status http-status) (string= type content-type))
            do (return-from other-head head))
    (let ((head (exchange:make-answer-head
                 http-status (acons "content-type" content-type (heads-headers heads)))))
      (when (< (length others) +most-other-heads+)
        (setf (heads-others heads) (acons http-status (list content-type head) others)))
      head)))

(defun header-text (value)
  (if (stringp value)
      (string-trim " " value)
      (encode-base64 (coerce value 'octets))))

(defparameter *trailer-prefix* "trailer-" "The prefix of the names of trailers in headers.")

(defun metadata-headers (metadata &optional (prefix ""))
  "METADATA, an alist that CHECK-METADATA has passed, as headers, with PREFIX before each name."
  (loop for (name . value) in metadata
        collect (cons (if (string= "" prefix) name (concatenate 'string prefix name))
                      (header-text value))))

