;;;; What an answer comes to. A name may stand for another (CNAME), whose records a server that
;;;; looks for us puts into the same answer; they are followed there, and the server is not asked
;;;; again. That there is nothing is an answer, too (RFC 2308): either the name does not exist, or
;;;; it has no record of the type.

(in-package #:clgrpc.dns)

(deftype outcome ()
  "What comes of a question: there are records; the server says that there are none, since there is
no such name or the name has none of that type; or nobody knows, since the server refuses or fails,
cannot be reached or does not answer."
  '(member :found :no-such-name :no-data :refused :server-failed :unreachable :no-answer))

(defconstant +most-aliases+ 16
  "So many names in a row may stand for another.")

(defun records-at (message name type)
  "The data of the records of TYPE that MESSAGE has for NAME, or for what that stands for."
  (let ((records (message-records message)))
    (flet ((data (name type)
             (loop for record in records
                   when (and (= type (record-type record)) (equalp name (record-name record)))
                     collect (record-data record))))
      (loop repeat (1+ +most-aliases+)
            for found = (data name type)
            until found
            do (setf name (or (first (data name +cname+)) (return '())))
            finally (return found)))))

(defun message-outcome (message name type)
  "The OUTCOME that MESSAGE, an answer, has for the question after records of TYPE that NAME has,
octets. The second value is the data of the records, in their order, or else why there are none, as
text."
  (let ((text (name-text name))
        (code (message-code message)))
    (case code
      (0 (let ((found (records-at message name type)))
           (if found
               (values :found found)
               (values :no-data (format nil "~A has no ~A record" text (type-text type))))))
      (2 (values :server-failed (format nil "the DNS server fails to look up ~A" text)))
      (3 (values :no-such-name (format nil "no such host ~A" text)))
      (5 (values :refused (format nil "the DNS server refuses to look up ~A" text)))
      (t (values :server-failed
                 (format nil "the DNS server answers with code ~D to ~A" code text))))))

(defun type-text (type)
  "The name of TYPE, for people."
  (case type
    (#.+a+ "A")
    (#.+aaaa+ "AAAA")
    (#.+txt+ "TXT")
    (#.+cname+ "CNAME")
    (t (princ-to-string type))))
