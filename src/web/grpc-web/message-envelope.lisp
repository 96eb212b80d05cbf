;;;; Messages of gRPC-Web: gRPC's envelopes, and an envelope with the flag 128 that contains the
;;;; trailers as lines, always in the body, since a page may be unable to read headers. In text mode
;;;; all octets are base64: a request in pieces that may end anywhere, padded or not; an answer in
;;;; complete pieces.

(in-package #:clgrpc.grpc-web)

(defconstant +trailers-flag+ 128 "The flag of the envelope that has the trailers.")
(defconstant +text-octets+ 4096 "The maximum length of a status text that is sent, in octets.")

(defun trailer-lines (call)
  "The octets of lines with the status and the trailers of CALL, which has ended."
  (multiple-value-bind (status text details trailers) (web:call-end call)
    (ascii-octets
     (format nil "grpc-status: ~D~C~C~:{~A: ~A~C~C~}" (status:sent-code status details)
             #\Return #\Newline
             (loop for (name . value)
                     in (append
                         (and (plusp (length text))
                              (list (cons "grpc-message"
                                          (map 'string #'code-char
                                               (server:encode-status-message text +text-octets+)))))
                         (and details
                              (list (cons "grpc-status-details-bin"
                                          (encode-base64 details))))
                         (web:metadata-headers trailers))
                   collect (list name value #\Return #\Newline))))))

(defun finish (call)
  "The function FINISH of both protocol handlers."
  (web:finish-enveloped call (web:envelope +trailers-flag+ (trailer-lines call))))

(define-load-time-global **binary**
    (web:make-protocol-handler :name :grpc-web :receive #'web:receive-enveloped :whole #'identity
                               :begun #'web:await-head
                               :part #'web:write-enveloped :finish #'finish))

;;; Text

(defun digits-of (notes octets start end)
  "The digits of base64 carried over in NOTES, followed by OCTETS from START to END."
  (let* ((carry (shiftf (web:notes-carry notes) '()))
         (digits (make-octets (+ (length carry) (- end start)))))
    (replace digits carry)
    (replace digits octets :start1 (length carry) :start2 start :end2 end)))

(defun decode-groups (digits end)
  "Two values: the octets decoded from DIGITS up to END, groups of four of which the last may be
short; and how many of them are valid. Padding may be at the end of each group."
  (let ((pad (char-code #\=)) (decoded (make-octets (* 3 (ceiling end 4)))) (fill 0))
    (loop with start = 0
          while (< start end)
          do (let* ((padded (position pad digits :start start :end end))
                    (stop (if padded (min end (* 4 (1+ (floor padded 4)))) end))
                    (part (decode-base64 digits :start start :end stop)))
               (setf fill (copy-octets part 0 (length part) decoded fill)
                     start stop)))
    (values decoded fill)))

(defun receive-text (call octets start end last)
  "The function RECEIVE of text mode: decode the complete groups, and carry the rest over."
  (declare (ignore last))
  (let* ((notes (web:call-web-notes call))
         (digits (digits-of notes octets start end))
         (stop (* 4 (floor (length digits) 4))))
    (setf (web:notes-carry notes) (coerce (subseq digits stop) 'list))
    (receive-groups call digits stop)))

(defun receive-groups (call digits stop)
  "Decode DIGITS up to STOP and pass the octets on."
  (when (plusp stop)
    (handler-case (decode-groups digits stop)
      (invalid-base64 ()
        (rpc:operate abort call :internal "the request is not base64" :local))
      (:no-error (decoded end) (web:receive-enveloped call decoded 0 end nil)))))

(defun text-whole (call)
  "The function WHOLE of text mode: the last group may lack its padding."
  (let* ((notes (web:call-web-notes call))
         (rest (shiftf (web:notes-carry notes) '())))
    (when rest
      (receive-groups call (coerce rest 'octets) (length rest)))))

(define-load-time-global **text**
    (web:make-protocol-handler :name :grpc-web :receive #'receive-text :whole #'text-whole
                               :begun #'web:await-head
                               :part #'web:write-enveloped :finish #'finish))
