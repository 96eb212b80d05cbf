;;;; The header tracestate (W3C Trace Context, section 3.3): a list of keys and values of tracing
;;;; systems, which others pass on. It may come in several headers, which are one list.
;;;;
;;;;   foo=1, tenant@vendor=2
;;;;
;;;; A list that is wrong anywhere is left out whole, the traceparent beside it counts on. Of
;;;; members with the same key the first, which is the newest, stays. A list that is longer than 512
;;;; characters loses members until it is not: first those of more than 128 characters, then the
;;;; last.

(in-package #:clgrpc.trace)

(defconstant +most-members+ 32 "How many members a tracestate may have.")
(defconstant +most-state-octets+ 512 "How long a tracestate is passed on.")
(defconstant +long-member-octets+ 128
  "Members longer than this are the first that a tracestate which is too long loses.")

(defun lower-or-digit-p (char)
  (or (char<= #\a char #\z) (char<= #\0 char #\9)))

(defun key-text-p (text start end most)
  "True if TEXT from START to END may be a key or one of its two parts, of MOST characters at most."
  (and (< start end)
       (<= (- end start) most)
       (lower-or-digit-p (char text start))
       (loop for i from start below end
             for char = (char text i)
             always (or (lower-or-digit-p char) (find char "_-*/")))))

(defun key-p (text start end)
  "True if TEXT from START to END is a key: a name, or a tenant and a system with @ between."
  (let ((at (position #\@ text :start start :end end)))
    (cond ((null at) (and (key-text-p text start end 256)
                          (char<= #\a (char text start) #\z)))
          (t (and (key-text-p text start at 241)
                  (key-text-p text (1+ at) end 14)
                  (char<= #\a (char text (1+ at)) #\z))))))

(defun value-p (text start end)
  "True if TEXT from START to END is a value: printable ASCII, not empty, without , and =, and no
blank at the end."
  (and (< start end)
       (<= (- end start) 256)
       (char/= #\Space (char text (1- end)))
       (loop for i from start below end
             for char = (char text i)
             always (and (char<= #\Space char #\~) (char/= char #\,) (char/= char #\=)))))

(defun member-p (text start end)
  "True if TEXT from START to END is a member, KEY=VALUE."
  (let ((equals (position #\= text :start start :end end)))
    (and equals
         (key-p text start equals)
         (value-p text (1+ equals) end))))

(defun split-members (text)
  "The members of TEXT, a tracestate, as texts; :WRONG if one is none."
  (loop with blanks = '(#\Space #\Tab)
        for start = 0 then (1+ comma)
        for comma = (position #\, text :start start)
        for member = (string-trim blanks (subseq text start comma))
        unless (string= "" member)
          if (member-p member 0 (length member)) collect member into members
            else do (return :wrong)
        end
        while comma
        finally (return members)))

(defun member-key (member)
  (subseq member 0 (position #\= member)))

(defun state-length (members)
  "How long the tracestate of MEMBERS is."
  (max 0 (1- (loop for member in members sum (1+ (length member))))))

(defun shorten-state (members)
  "MEMBERS without those that make a tracestate too long."
  (flet ((without (predicate)
           (let ((at (position-if predicate members :from-end t)))
             (when at
               (setf members (append (subseq members 0 at) (nthcdr (1+ at) members)))))))
    (loop while (> (state-length members) +most-state-octets+)
          do (or (without (lambda (member) (> (length member) +long-member-octets+)))
                 (without (constantly t))))
    members))

(defun read-tracestate (texts)
  "The tracestate in TEXTS, the values of its headers in their order, as one text; empty if there is
none or something in it is wrong."
  (let ((members '()))
    (dolist (text texts)
      (let ((more (if (> (length text) 8192) :wrong (split-members text))))
        (when (eq :wrong more) (return-from read-tracestate ""))
        (setf members (append members more))))
    (if (> (length members) +most-members+)
        ""
        (coerce (format nil "~{~A~^,~}"
                        (shorten-state (remove-duplicates members :key #'member-key :test #'string=
                                                                  :from-end t)))
                'simple-string))))

(defun trace-state (context)
  "The tracestate of CONTEXT, what CURRENT-TRACE returns, as an alist from key to value, strings:
what other tracing systems have said of the trace, in their order. From any thread."
  (let ((text (context-state context)))
    (loop for member in (if (string= "" text) '() (split-members text))
          for equals = (position #\= member)
          collect (cons (subseq member 0 equals) (subseq member (1+ equals))))))
