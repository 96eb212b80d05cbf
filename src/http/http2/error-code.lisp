;;;; The error codes of RFC 9113 section 7, declared once. Unknown codes of a peer are passed on as
;;;; numbers and are never treated as an error themselves.

(in-package #:clgrpc.http2)

(deftype error-code ()
  "An error code as RST_STREAM and GOAWAY carry it."
  '(unsigned-byte 32))

(defmacro define-error-codes (&body rows)
  "Define from ROWS of the form (name code meaning) the constants +NAME+ and the vector of names."
  `(progn
     ,@(loop for (name code meaning) in rows
             collect `(defconstant ,(intern (format nil "+~A+" name)) ,code ,meaning))
     (sb-ext:defglobal **error-code-names**
         (vector ,@(loop for (name) in rows collect (substitute #\_ #\- (string name)))))))

(define-error-codes
  (no-error 0 "Graceful shutdown, or a stream that is no longer needed.")
  (protocol-error 1 "The peer broke a rule that has no code of its own.")
  (internal-error 2 "An error of the endpoint that sends it.")
  (flow-control-error 3 "The peer sent more than its window allows, or made a window overflow.")
  (settings-timeout 4 "SETTINGS were not acknowledged in time.")
  (stream-closed 5 "The peer sent a frame on a stream that is closed for it.")
  (frame-size-error 6 "A frame has a length that its type does not allow.")
  (refused-stream 7 "The stream was not processed at all and may be tried again.")
  (cancel 8 "The stream is no longer needed.")
  (compression-error 9 "The header compression state is broken.")
  (connect-error 10 "The connection of a CONNECT request was reset.")
  (enhance-your-calm 11 "The peer causes excessive load.")
  (inadequate-security 12 "The transport does not meet the minimum of security.")
  (http-1-1-required 13 "HTTP/1.1 must be used instead."))

(defun error-code-name (code)
  "Return the name of error CODE as RFC 9113 section 7 spells it, such as \"PROTOCOL_ERROR\", or a
description with its number if the RFC does not name it."
  (if (< code (length **error-code-names**))
      (aref **error-code-names** code)
      (format nil "error code ~D" code)))
