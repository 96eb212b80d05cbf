;;;; Common code of this suite: messages as text, where | ends a line, and a parser's results for
;;;; them, in portions of any size.

(in-package #:clgrpc.tests.http1)

(def-suite :clgrpc.http1 :description "RFC 9112: HTTP/1.1.")

(defun wire (text)
  "The octets of TEXT, of which each | is CR LF."
  (coerce (loop for character across text
                if (char= #\| character) append '(13 10)
                else collect (char-code character))
          'octets))

(defun text-of (octets start end)
  (map 'string #'code-char (subseq octets start end)))

(defun pairs (fields)
  "FIELDS, HPACK's, as a list of strings: name: value."
  (map 'list (lambda (field)
               (format nil "~A: ~A" (hpack:field-name-string field)
                       (hpack:field-value-string field)))
       fields))

(defun head-of (message)
  "The data of MESSAGE, as a list."
  (append (if (plusp (message-status message))
              (list (message-status message) (message-reason message))
              (list (message-http-method message) (message-target message)))
          (list (pairs (message-fields message)) (message-body message)
                (message-persistent-p message))))

(defun portions (octets size)
  "OCTETS cut into vectors of SIZE or, if that is nil, not at all."
  (if size
      (loop for start from 0 below (length octets) by size
            collect (subseq octets start (min (length octets) (+ start size))))
      (list octets)))

(defun map-events (function parser octets)
  "Call FUNCTION with each of PARSER's events for OCTETS: heads by HEAD-OF, bodies as strings, and
:end, or (:end trailers…)."
  (loop with at = 0
        for (next event) = (multiple-value-list (parse parser octets at (length octets)))
        while event
        do (funcall function
                    (ecase event
                      (:head (head-of (parser-message parser)))
                      (:body (text-of octets (parser-body-start parser)
                                      (parser-body-end parser)))
                      (:end (let ((trailers (pairs (parser-trailers parser))))
                              (next-message parser)
                              (if trailers (list* :end trailers) :end)))))
           (setf at next)))

(defun feed (parser octets)
  "PARSER's events for OCTETS, a list; see MAP-EVENTS."
  (let ((events '()))
    (map-events (lambda (event) (push event events)) parser octets)
    (nreverse events)))

(defun joined (events)
  "EVENTS, in which consecutive bodies are joined."
  (loop with joined = '()
        for event in events
        do (if (and (stringp event) (stringp (first joined)))
               (setf (first joined) (concatenate 'string (first joined) event))
               (push event joined))
        finally (return (nreverse joined))))

(defun said (text &key (role :server) requests size (options '()))
  "The events of a parser of ROLE for TEXT, a message or several, in portions of SIZE octets."
  (let ((parser (apply #'make-parser role options)))
    (dolist (request requests) (expect-response parser request))
    (joined (loop for portion in (portions (wire text) size) append (feed parser portion)))))

(defun status-of (text &rest arguments)
  "The status of the error in TEXT, or nil without an error; the same however TEXT is divided."
  (flet ((status (size)
           (handler-case (progn (apply #'said text :size size arguments) nil)
             (http1-error (error)
               (is (plusp (length (http1-error-text error))))
               (http1-error-status error)))))
    (let ((whole (status nil)))
      (dolist (size '(1 2 3 7) whole)
        (is (eql whole (status size)) "~S in portions of ~D" text size)))))

(defmacro is-said (expected text &rest arguments)
  "Check that TEXT, in any portions, gives EXPECTED."
  `(dolist (size '(nil 1 2 3 5 11))
     (is (equal ,expected (said ,text :size size ,@arguments)) "in portions of ~A" size)))
