;;;; Transactions: comparisons, operations that are done if all comparisons are true, and others
;;;; that are done if not, all at one revision of the store. Transactions are written as lists:
;;;;
;;;;     (transact etcd :when '((:absent "lock")) :then '((:put "lock" "mine"))
;;;;                    :else '((:get "lock")))

(in-package #:clgrpc.etcd)

(defun comparison-result (operator)
  (cond ((not (symbolp operator)) nil)
        ((string= "=" operator) :equal)
        ((string= "/=" operator) :not-equal)
        ((string= "<" operator) :less)
        ((string= ">" operator) :greater)))

(defun ranged (function options)
  "Call FUNCTION with the first key and the end of the range in OPTIONS, a plist, and with the other
options. Signal MISUSE if OPTIONS have no range."
  (unless (and (listp options) (evenp (length options)))
    (misuse "~S is not a range of keys." options))
  (multiple-value-bind (start end) (range-of (getf options :prefix) (getf options :from)
                                             (getf options :to))
    (apply function start end (alexandria:remove-from-plist options :prefix :from :to))))

(defun keys-of (keys)
  "Two values: the first key and the end of the range that KEYS, a key or a plist, describes."
  (if (consp keys)
      (ranged #'values keys)
      (values (key-octets keys) (make-octets 0))))

(defun compare-entry (keys target result operand)
  "The comparison of TARGET, a keyword such as :value, of the entries of KEYS with OPERAND, see
COMPARISON."
  (multiple-value-bind (key end) (keys-of keys)
    (flet ((compare (target &rest union)
             (apply #'pb:make-compare :key key :range-end end :result result :target target union)))
      (ecase target
        (:value (compare :value :value (text-octets operand)))
        (:version (compare :version :version operand))
        (:created (compare :create :create-revision operand))
        (:changed (compare :mod :mod-revision operand))
        (:lease (compare :lease :lease (lease-number operand)))))))

(defun comparison (form)
  "The message for FORM, a comparison of a transaction. Signal MISUSE if FORM is not a comparison."
  (flet ((wrong () (misuse "~S is not a comparison of a transaction." form)))
    (unless (and (consp form) (typep (second form) '(or text cons))) (wrong))
    (destructuring-bind (target key &optional operator operand &rest more) form
      (let ((result (comparison-result operator)))
        (cond ((and (member target '(:absent :present)) (null (cddr form)))
               (compare-entry key :version (if (eq :absent target) :equal :greater) 0))
              (more (wrong))
              ((and result (eq :value target) (typep operand 'text))
               (compare-entry key target result operand))
              ((and result (eq :lease target) (typep operand '(or lease integer)))
               (compare-entry key target result operand))
              ((and result (member target '(:version :created :changed)) (integerp operand))
               (compare-entry key target result operand))
              (t (wrong)))))))

(defun deletion (start end)
  (pb:make-delete-range-request :key start :range-end end))

(defun operation (form)
  "The message for FORM, an operation of a transaction. Signal MISUSE if FORM is not an operation."
  (flet ((wrong () (misuse "~S is not an operation of a transaction." form)))
    (unless (consp form) (wrong))
    (destructuring-bind (verb &rest arguments) form
      (handler-case
          (ecase verb
            (:get (pb:make-request-op
                   :request-range (apply #'range-request (key-octets (first arguments)) nil
                                         (rest arguments))))
            (:get-all (pb:make-request-op :request-range (ranged #'range-request arguments)))
            (:count (pb:make-request-op
                     :request-range (ranged #'range-request
                                            (append arguments '(:count-only t)))))
            (:put (pb:make-request-op :request-put (apply #'put-request arguments)))
            (:remove (pb:make-request-op
                      :request-delete-range
                      (deletion (key-octets (first arguments)) (make-octets 0))))
            (:remove-all (pb:make-request-op :request-delete-range (ranged #'deletion arguments)))
            (:transact (pb:make-request-op :request-txn (apply #'txn-request arguments))))
        ((and error (not clgrpc-error)) () (wrong))))))

(defun txn-request (&key when then else)
  "The message of a transaction."
  (pb:make-txn-request :compare (mapcar #'comparison when)
                       :success (mapcar #'operation then)
                       :failure (mapcar #'operation else)))

(defun operation-value (form response)
  "The user's value for RESPONSE, a response to the operation FORM."
  (flet ((part (reader) (need-part (and response (funcall reader response)) t)))
    (ecase (first form)
      (:get (first (entries-of (pb:range-response-kvs (part #'pb:response-op-response-range)))))
      (:get-all (entries-of (pb:range-response-kvs (part #'pb:response-op-response-range))))
      (:count (pb:range-response-count (part #'pb:response-op-response-range)))
      (:put (entry-of (pb:put-response-prev-kv (part #'pb:response-op-response-put))))
      ((:remove :remove-all)
       (pb:delete-range-response-deleted (part #'pb:response-op-response-delete-range)))
      (:transact (multiple-value-call #'cons
                   (apply #'txn-values (part #'pb:response-op-response-txn) (rest form)))))))

(defun txn-values (response &key when then else)
  "Two values: true if RESPONSE says that the comparisons of a transaction were true, and a list of
the values of its operations."
  (declare (ignore when))
  (let ((succeeded (pb:txn-response-succeeded response)))
    (values succeeded
            (loop with responses = (coerce (pb:txn-response-responses response) 'list)
                  for form in (if succeeded then else)
                  collect (operation-value form (pop responses))))))

(defun reads-only-p (&rest forms)
  "True if FORMS, lists of operations, change nothing."
  (every (lambda (operations)
           (every (lambda (operation)
                    (case (first operation)
                      ((:get :get-all :count) t)
                      (:transact (reads-only-p (getf (rest operation) :then)
                                               (getf (rest operation) :else)))))
                  operations))
         forms))

(define-keyword-function transact (etcd &key when then else timeout)
  "Do THEN if all comparisons of WHEN are true, else ELSE, atomically: no client sees only a part of
it. Return three values: true if the comparisons were true; a list of the values of the operations;
and the revision of the store. WHEN is a list of comparisons of the entries of keys: (:absent KEY),
(:present KEY), and with =, /=, < or > as OPERATOR (:value KEY OPERATOR TEXT), (:version KEY
OPERATOR NUMBER), (:created KEY OPERATOR REVISION), (:changed KEY OPERATOR REVISION), (:lease KEY
OPERATOR LEASE). A missing entry has version and revisions 0. In place of KEY a list such as
(:prefix PREFIX) or (:from KEY :to KEY) may be given: the comparison must be true of all entries of
that range; if the range is empty, the comparison must be true of a missing entry. THEN and ELSE are
lists of operations. The value of (:get KEY) is an entry or nil. The value of (:get-all :prefix
PREFIX), or of :get-all with :from and :to, is a list of entries; :get-all accepts further keywords
of MAP-ENTRIES (:limit, :order, :keys-only, :min-created and so on). The value of (:count :prefix
PREFIX) is the number of entries. The value of (:put KEY VALUE), with :lease, :keep-lease,
:keep-value and :previous as for PUT, is nil or the previous entry. The value of (:remove KEY) and
of (:remove-all :prefix PREFIX) is the number of removed entries. (:transact :when … :then … :else
…) is another transaction, done at this place. Its value is a list of a boolean, true if its
comparisons were true, and the list of its operations' values. No key may be put twice. A
transaction that only reads is repeated if no answer arrives, as FETCH is. Signal MISUSE for other
forms, or an ETCD-ERROR, see ETCD-ERROR-PERHAPS-DONE-P. From any thread."
  (let ((response (ask etcd #'kv:txn (txn-request :when when :then then :else else) timeout
                       :twice (reads-only-p then else))))
    (multiple-value-bind (succeeded results) (txn-values response :then then :else else)
      (values succeeded results (header-revision (pb:txn-response-header response))))))
