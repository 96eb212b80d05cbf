;;;; The result of an answer. A name may be an alias of another name (CNAME). A recursive server
;;;; puts the records of the other name into the same answer, so the server need not be asked again.
;;;; An answer without records is valid, too (RFC 2308): either the name does not exist, or it has
;;;; no record of the requested type.

(in-package #:clgrpc.dns)

(deftype outcome ()
  "The result of a question. Records were found, no such name exists, or the name has no records of
that type. With the other outcomes the answer is unknown, because the server refuses, fails, cannot
be reached or does not answer."
  '(member :found :no-such-name :no-data :refused :server-failed :unreachable :no-answer))

(defconstant +most-aliases+ 16
  "The maximum number of aliases in a row that are followed.")

(defun records-at (message name type)
  "The data of the records of TYPE in MESSAGE for NAME, or for the name of which NAME is an alias."
  (let ((records (message-records message)))
    (flet ((data (name type)
             (loop for record in records
                   when (and (= type (record-type record))
                             (octets-equal name (record-name record)))
                     collect (record-data record))))
      (loop repeat (1+ +most-aliases+)
            for found = (data name type)
            until found
            do (setf name (or (first (data name +cname+)) (return '())))
            finally (return found)))))

(defun message-outcome (message name type)
  "Return the OUTCOME of MESSAGE, the answer to a question for the records of TYPE of NAME, octets.
The second value is a list of the data of the records, in their order, or, if none were found, the
reason as text."
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
                 (format nil "the DNS server answers the query for ~A with code ~D"
                         text code))))))

(defun type-text (type)
  "The name of TYPE, for people."
  (case type
    (#.+a+ "A")
    (#.+aaaa+ "AAAA")
    (#.+txt+ "TXT")
    (#.+cname+ "CNAME")
    (t (princ-to-string type))))
