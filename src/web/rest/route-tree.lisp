;;;; The choice of a request's route. The templates of all routes are one tree, a level for each
;;;; segment. A path is looked up in the tree from its first segment on. A literal has priority over
;;;; "*", and "*" over "**"; the search backtracks where no route follows. A first search treats the
;;;; part after the last colon as a verb, a second search does not. So the route depends on the path
;;;; alone, not on the order in which routes were given; each node of the tree is visited at most
;;;; once. "*" matches no empty segment, "**" matches any number of any segments.
;;;;
;;;; Two routes of one method of HTTP whose templates match the same paths are an error when the
;;;; router is made.

(in-package #:clgrpc.rest)

(defstruct (node (:copier nil))
  "The possible continuations of the paths that lead here."
  (literals nil :type (or null hash-table)) ; maps a segment to its node
  (longest 0 :type index)               ; how many characters the longest of LITERALS has
  (one nil :type (or null node))        ; the node to which * leads
  (ends '() :type list)                 ; the routes that end here
  (rests '() :type list))               ; the routes that end with ** here

(defstruct (router (:constructor %make-router (root routes depth longest-verb)) (:copier nil))
  "The routes of a server."
  (root nil :type node :read-only t)    ; the root of the tree
  (depth 0 :type index :read-only t)    ; how many segments the longest template has
  ;; the length of the longest verb; 0 if no template has one
  (longest-verb 0 :type index :read-only t)
  (routes '() :type list :read-only t)) ; all routes, as they were given

(document-functions
  router-routes "The routes of ROUTER in the order in which they were given.")

(define-printer (router router)
  "~D route~:P" (length (router-routes router)))

(defun route-suffix (route)
  "The verb that ends ROUTE's template; nil if it has none."
  (template-verb (route-template route)))

(defun enter-end (route routes)
  "ROUTES, which match the same paths except for their verbs, with ROUTE added; routes for any HTTP
method come last."
  (let ((same (find-if (lambda (other)
                         (and (equal (route-suffix other) (route-suffix route))
                              (string= (route-verb other) (route-verb route))))
                       routes)))
    (when same
      (let ((*rule* (route-text route)))
        (wrong-rule "it matches the same requests as ~A" (route-text same))))
    (if (string= "*" (route-verb route)) (append routes (list route)) (cons route routes))))

(defun enter-route (root route)
  (let ((node root))
    (loop for segment across (template-segments (route-template route))
          do (case segment
               (:rest (setf (node-rests node) (enter-end route (node-rests node)))
                (return-from enter-route nil))
               (:one (setf node (or (node-one node) (setf (node-one node) (make-node)))))
               (t (let ((table (or (node-literals node)
                                   (setf (node-literals node) (make-hash-table :test 'equal)))))
                    (setf (node-longest node) (max (length segment) (node-longest node)))
                    (setf node (alexandria:ensure-gethash segment table (make-node)))))))
    (setf (node-ends node) (enter-end route (node-ends node)))))

(defun longest (items function)
  "The length of the longest sequence that FUNCTION returns for one of ITEMS; 0 if there are none."
  (reduce #'max items :key (lambda (item) (length (funcall function item))) :initial-value 0))

(defun make-router (routes)
  "Return a router of ROUTES, a list. Signal RULE-ERROR if two of ROUTES match the same requests;
the error names both."
  (let ((root (make-node)))
    (dolist (route routes) (enter-route root route))
    (%make-router root routes
                  (longest routes (lambda (route) (template-segments (route-template route))))
                  (longest routes #'route-suffix))))

;;; Paths

(defconstant +most-per-character+ 12
  "The maximum number of characters of a path that represent one decoded character: four octets,
each of them escaped.")

(defstruct (match (:constructor make-match (text starts ends count end)) (:copier nil))
  "A path that is being looked up. The path has at most as many segments as the longest template,
and one for everything after these, because a peer can send a path of thousands of segments with one
or two octets."
  (text "" :type simple-string :read-only t) ; all of it
  (starts #() :type simple-vector :read-only t) ; the start of each of the path's first segments
  (ends #() :type simple-vector :read-only t) ; and ends
  ;; the number of segments, including the one for everything after these
  (count 0 :type index :read-only t)
  (end 0 :type index :read-only t))     ; the end of the last segment, without its verb

(define-hot split-path ((path simple-string) (depth index))
    (values simple-vector simple-vector index)
  "Three values: the starts and the ends of the first DEPTH segments of PATH, which begins with a
slash; and the number of its segments, but DEPTH + 1 at most."
  (let ((starts (make-array depth :initial-element 0))
        (ends (make-array depth :initial-element 0))
        (count 0) (slash 0))
    (declare (type index count) (type (or null index) slash))
    (loop while (and slash (< count depth))
          do (let* ((start (1+ slash)) (next (char-position #\/ path :start start)))
               (setf (svref starts count) start
                     (svref ends count) (or next (length path))
                     slash next)
               (incf count)))
    (values starts ends (if slash (1+ count) count))))

(define-hot verb-colon ((path simple-string) (longest index)) (or null index)
  "The index in PATH of the colon before its verb, if PATH has a verb of LONGEST characters at most;
else nil."
  (loop for i of-type index from (length path) above (max 0 (- (length path) longest 1))
        do (case (char path (1- i))
             (#\/ (return nil))
             (#\: (return (1- i))))))

(defun segment-end (match index)
  (if (= (1+ index) (match-count match)) (match-end match) (svref (match-ends match) index)))

(defun literal-node (node match index)
  "The node to which NODE leads by the literal that equals the segment of MATCH at INDEX; nil if no
literal equals it."
  (let ((start (svref (match-starts match) index)) (end (segment-end match index)))
    (and (node-literals node)
         (<= (- end start) (* +most-per-character+ (node-longest node)))
         (values (gethash (decode-text (match-text match) start end) (node-literals node))))))

(defun map-matches (function root match suffix)
  "Call FUNCTION with each route of the tree of ROOT that MATCH matches and whose verb is SUFFIX, or
that has no verb if SUFFIX is nil; preferred routes come first."
  (declare (type function function))
  (let ((count (match-count match)))
    (labels ((tell (routes)
               (dolist (route routes)
                 (when (equal suffix (route-suffix route)) (funcall function route))))
             (walk (node index)
               (cond ((= index count) (tell (node-ends node)))
                     ((= index (length (match-starts match)))) ; no template is longer
                     (t
                      (let ((next (literal-node node match index)))
                        (when next (walk next (1+ index))))
                      (when (and (node-one node)
                                 (< (the index (svref (match-starts match) index))
                                    (the index (segment-end match index))))
                        (walk (node-one node) (1+ index)))))
               (tell (node-rests node))))
      (walk root 0))))

(defun map-all-matches (function router path)
  "Call FUNCTION with each route of ROUTER that PATH leads to, the preferred first, and with the
match."
  (multiple-value-bind (starts ends count) (split-path path (router-depth router))
    (let ((colon (verb-colon path (* +most-per-character+ (router-longest-verb router)))))
      (flet ((look (end suffix)
               (let ((match (make-match path starts ends count end)))
                 (map-matches (lambda (route) (funcall function route match)) (router-root router)
                              match suffix))))
        (when colon (look colon (decode-text path (1+ colon) (length path))))
        (look (length path) nil)))))

(defun takes-verb-p (route verb)
  (or (string= verb (route-verb route)) (string= "*" (route-verb route))))

(defun allowed-verbs (verbs)
  "The HTTP methods of a path whose routes have VERBS."
  (sort (remove-duplicates (if (member "GET" verbs :test #'string=) (cons "HEAD" verbs) verbs)
                           :test #'string=)
        #'string<))

(defun find-route (router verb path)
  "Return two values: the route of ROUTER for a request with the method of HTTP VERB and the PATH,
as received and without its query; and the match for BIND-MESSAGE. Without such a route, return nil
and the list of HTTP methods that have a route for the path. A HEAD request without a route of its
own gets the route of GET. Signal REQUEST-ERROR if PATH is not percent-encoded UTF-8."
  (let ((path (coerce path 'simple-string)) (verbs '()))
    (unless (and (plusp (length path)) (char= #\/ (char path 0)))
      (return-from find-route (values nil '())))
    (map-all-matches (lambda (route match)
                       (when (takes-verb-p route verb)
                         (return-from find-route (values route match)))
                       (push (route-verb route) verbs))
                     router path)
    (if (and (string= "HEAD" verb) (member "GET" verbs :test #'string=))
        (find-route router "GET" path)
        (values nil (allowed-verbs verbs)))))
